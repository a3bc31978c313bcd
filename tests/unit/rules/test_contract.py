"""What every rule keeps: its page, thresholds, ids that exist, and tests both ways."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from diagnose import engine
from diagnose.errors import UsageError
from diagnose.replay import change_text
from diagnose.rules._known import STATUSES, VERDICTS, folklore, variables
from diagnose.rules._page import SECTIONS
from diagnose.rules._rule import Rule, described

FOLDER = Path(__file__).parent
CATALOGUE = frozenset((FOLDER / "catalogue.txt").read_text().split())
UNITS = ("_pct", "_us", "_ms", "_s", "_bytes", "_mib", "_ratio", "_mhz", "_w", "_c", "_gb_per_s")
COUNT = re.compile(r"(min|max)_num_\w+")
RULES = pytest.mark.parametrize("rule", engine.rules().values(), ids=engine.rules().keys())


@RULES
def test_the_page_is_whole(rule: Rule):
    page = rule.page
    assert tuple(page.sections) == SECTIONS
    assert page.title[0].isupper()
    assert page.sections["References"].startswith("- ")


@RULES
def test_thresholds_say_unit_and_origin_and_stand_on_the_page(rule: Rule):
    for one in described(rule.thresholds):
        assert one.name.endswith(UNITS) or COUNT.fullmatch(one.name), one.name
        assert isinstance(one.default, int) == bool(COUNT.fullmatch(one.name)), one.name
        assert len(one.origin) > 10, one.name
        assert f"`{one.name}`" in rule.page.sections["How it decides"]
    assert rule.thresholds.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(one.kw_only for one in fields(rule.thresholds))


@RULES
def test_what_it_names_exists(rule: Rule):
    assert set(rule.explains) <= CATALOGUE | engine.rules().keys()
    assert rule.id not in rule.explains
    for change in rule.changes:
        change_text.parse(change)


@RULES
def test_changes_named_in_its_module_exist(rule: Rule):
    tree = ast.parse(Path(rule.check.__code__.co_filename).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "changes":
            _check_changes(node.value)


def _check_changes(node: ast.AST) -> None:
    if isinstance(node, ast.JoinedStr):
        # What is filled in is a value: the id and the field before it are there to read.
        head = node.values[0]
        assert isinstance(head, ast.Constant)
        name, _, rest = str(head.value).partition(":")
        known = change_text.known()[name]
        if rest:
            assert rest.rpartition(",")[2].removesuffix("=") in {one.name for one in fields(known)}
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        change_text.parse(node.value)
    else:
        for child in ast.iter_child_nodes(node):
            _check_changes(child)


def test_a_change_that_does_not_exist_is_noticed():
    with pytest.raises(UsageError):
        change_text.parse("no-such-change")


def test_explaining_goes_one_way():
    """No two rules explain each other, however far apart."""
    rules = engine.rules()
    for start in rules:
        seen, ahead = set(), list(rules[start].explains)
        while ahead:
            name = ahead.pop()
            assert name != start, f"{start} explains itself"
            if name in rules and name not in seen:
                seen.add(name)
                ahead += rules[name].explains


@RULES
def test_has_a_test_that_fires_and_one_that_is_silent(rule: Rule):
    path = FOLDER / f"test_{rule.id.replace('-', '_')}.py"
    tests = re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    assert any("fires" in name for name in tests), path.name
    assert any("silent" in name for name in tests), path.name


@RULES
def test_imports_no_other_rule(rule: Rule):
    tree = ast.parse(Path(rule.check.__code__.co_filename).read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    inside = {name for name in modules if name.startswith("diagnose.rules.")}
    assert all(name.split(".")[2].startswith("_") for name in inside), inside
    assert not any(name.startswith(("diagnose.reporters", "diagnose.engine")) for name in modules)


def test_ids_are_those_of_the_catalogue_or_new():
    """A slip of the pen in a file name would make a new rule."""
    new = engine.rules().keys() - CATALOGUE
    assert new == set()


def test_folklore_and_variables_are_well_formed():
    assert len(folklore()) >= 25
    for one in folklore():
        assert one.verdict in VERDICTS
        assert one.claim.endswith(".")
        assert set(one.rules) <= CATALOGUE
        assert one.rules
    assert len(variables()) >= 50
    for name, variable in variables().items():
        assert re.fullmatch(r"[A-Z][A-Z0-9_]+", name)
        assert variable.status in STATUSES
    assert variables()["HSA_OVERSUBSCRIPTION"].status == "not found"
    assert variables()["CUDA_DEVICE_MAX_CONNECTIONS"].default == "8"
