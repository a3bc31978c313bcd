"""Discovery refuses gaps, analyses are isolated, and each runs once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from diagnose import engine
from diagnose.analysis import Analyzer, Unavailable
from diagnose.errors import ExtensionError, UsageError
from diagnose.schema import Column, Detail, TableSchema
from diagnose.trace import Table
from tests.builder import TraceBuilder, build_trace

SCHEMA = TableSchema("ones", "one", (Column("one", "int64", "always 1"),))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package to walk; call it with file name -> content."""

    def make(**files: str) -> str:
        folder = tmp_path / "walked_package"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for name, content in files.items():
            (folder / f"{name}.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)
        return "walked_package"

    yield make
    for name in [name for name in sys.modules if name.startswith("walked_package")]:
        del sys.modules[name]


@pytest.fixture
def trace():
    return build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 10))


def ones(trace, *, value=1):
    """Ones."""
    return Table(SCHEMA, {"one": np.array([value])}, trace.strings)


def installed(monkeypatch, *analyzers: Analyzer) -> None:
    monkeypatch.setattr(engine, "analyzers", lambda: {a.name: a for a in analyzers})


def test_discovery_finds_public_modules_and_passes_over_their_parts(package):
    name = package(first="FLAG = 1", second="FLAG = 2", _part="")
    assert engine.discover(name, "FLAG") == {"first": 1, "second": 2}


def test_discovery_refuses_a_module_without_its_constant(package):
    name = package(first="FLAG = 1", second="flag = 2")
    with pytest.raises(ExtensionError, match=r"walked_package\.second does not define FLAG"):
        engine.discover(name, "FLAG")


def test_two_analyses_of_one_name_are_refused(monkeypatch):
    twin = (Analyzer("overlap", Detail.GPU, SCHEMA, ones),)
    monkeypatch.setattr(engine, "discover", lambda *_: {"twin": twin})
    engine.analyzers.cache_clear()
    with pytest.raises(ExtensionError, match=r"'overlap'.*twin"):
        dict(engine.analyzers())


def test_an_analysis_is_found_by_its_name_alone():
    engine.analyzers.cache_clear()
    known = engine.analyzers()
    # In a layer of its own, in a file of its name, in a file of another name.
    for name in ("overlap", "stalls", "stall_causes"):
        assert known[name].name == name
        assert name in known
    assert dict(known)["overlap"] is known["overlap"]
    assert "unheard_of" not in known
    with pytest.raises(KeyError, match="unheard_of"):
        known["unheard_of"]


def test_every_request_of_the_report_is_an_analysis_with_these_options():
    engine.analyzers.cache_clear()
    for request in engine.REPORT.values():
        engine.options_of(engine.analyzers()[request.analyzer]).bind(**request.options)


def test_an_unknown_option_names_the_known_ones(trace):
    with pytest.raises(UsageError) as raised:
        engine.run(Analyzer("ones", Detail.GPU, SCHEMA, ones), trace, valeu=2)
    assert "valeu" in raised.value.message
    assert raised.value.hint == "options of ones: value"


def test_too_little_detail_is_unavailable_with_a_remedy(trace):
    poor = build_trace(TraceBuilder(rank=0).kernel("gemm", 0, 10), detail=Detail.GPU)
    analyzer = Analyzer("ones", Detail.ALL, SCHEMA, ones)
    answer = engine.run(analyzer, poor)
    assert isinstance(answer, Unavailable)
    assert "only" in answer.remedy
    assert isinstance(engine.run(analyzer, trace), Table)


def test_a_table_of_another_schema_breaks_the_contract(trace):
    other = TableSchema("others", "one", SCHEMA.columns)
    with pytest.raises(ExtensionError, match=r"'ones'.*'others'"):
        engine.run(Analyzer("others", Detail.GPU, other, ones), trace)


def test_a_crashing_analysis_does_not_stop_the_others(trace, monkeypatch):
    def crash(trace):
        raise ZeroDivisionError("no steps")

    installed(
        monkeypatch,
        Analyzer("crash", Detail.GPU, SCHEMA, crash),
        Analyzer("ones", Detail.GPU, SCHEMA, ones),
    )
    requests = {"a": engine.Request("crash"), "b": engine.Request("ones", {"value": 7})}
    told = []
    diagnosis = engine.diagnose(trace, requests, failed=lambda name, problem: told.append(name))
    assert diagnosis.tables["b"]["one"].tolist() == [7]
    assert "ZeroDivisionError: no steps" in diagnosis.unavailable["a"].because
    assert told == ["a"]
    with pytest.raises(ZeroDivisionError):
        engine.diagnose(trace, requests, debug=True)


def test_a_crash_is_told_of_the_request_that_crashed_alone(trace, monkeypatch):
    def sometimes(trace, value=0):
        if value == 0:
            raise ZeroDivisionError("no value")
        return ones(trace, value=value)

    installed(monkeypatch, Analyzer("some", Detail.GPU, SCHEMA, sometimes))
    requests = {"a": engine.Request("some"), "b": engine.Request("some", {"value": 7})}
    told = []
    diagnosis = engine.diagnose(trace, requests, failed=lambda name, problem: told.append(name))
    assert (told, set(diagnosis.tables), set(diagnosis.unavailable)) == (["a"], {"b"}, {"a"})


def test_what_an_analysis_cannot_say_is_kept_with_its_remedy(trace, monkeypatch):
    reason = Unavailable("no marks", "call step()")
    installed(monkeypatch, Analyzer("steps", Detail.GPU, SCHEMA, lambda trace: reason))
    diagnosis = engine.diagnose(trace, {"steps": engine.Request("steps")})
    assert diagnosis.unavailable == {"steps": reason}
    assert diagnosis.tables == {}


def test_an_analysis_that_is_not_installed_is_said_so(trace, monkeypatch):
    installed(monkeypatch)
    diagnosis = engine.diagnose(trace, {"x": engine.Request("breakdown")})
    assert "no analysis called 'breakdown'" in diagnosis.unavailable["x"].because


def test_each_analysis_runs_once(trace, monkeypatch):
    calls = []

    def counting(trace):
        calls.append(1)
        return ones(trace)

    installed(monkeypatch, Analyzer("counting", Detail.GPU, SCHEMA, counting))
    engine.diagnose(trace, {"counting": engine.Request("counting")})
    assert len(calls) == 1


def test_every_module_that_is_walked_is_a_file_of_the_package():
    folder = Path(engine.__file__).parent
    public = {p.stem for p in (folder / "reporters").glob("*.py") if not p.stem.startswith("_")}
    assert set(engine.reporters()) == public
