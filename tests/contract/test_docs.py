"""The pages say what is there: generated ones are current, links lead somewhere, commands exist."""

from __future__ import annotations

import ast
import html
import importlib.util
import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diagnose import engine
from diagnose.analysis import Unavailable
from diagnose.errors import DiagnoseError, InputError
from diagnose.trace import Table
from tests.builder import TraceBuilder, build_trace

LINK = re.compile(
    r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\""
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
COMMAND = re.compile(r"(?:^|[`$ ])diagnose ([a-z][a-z-]*)(?=[ `\n]|$)", re.MULTILINE)
OPTION = re.compile(r"(--[a-z][a-z-]+)")


def _pages(root: Path) -> list[Path]:
    return [
        *sorted(root.glob("*.md")),
        *sorted((root / "docs").rglob("*.md")),
        root / "benchmarks/README.md",
        root / "examples/recordings/README.md",
    ]


def _anchors(page: Path) -> set[str]:
    """GitHub's anchors of the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def _script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _generator(root: Path) -> ModuleType:
    return _script(root / "docs/generate.py")


def test_schema_page_is_current(root: Path) -> None:
    page = (root / "docs/schema.md").read_text(encoding="utf-8")
    assert page == _generator(root).schema_page(), "run: python docs/generate.py"


def test_a_stale_schema_page_is_noticed(root: Path, tmp_path: Path, capsys: Any) -> None:
    generator = _generator(root)
    generator.TARGET = tmp_path / "schema.md"
    assert generator.main(["--check"]) == 1
    assert "python docs/generate.py" in capsys.readouterr().err
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0


def test_the_changes_of_the_whatif_page_are_current(root: Path) -> None:
    generator = _script(root / "docs/generate_changes.py")
    page = generator.TARGET.read_text(encoding="utf-8")
    assert page == generator.page(page), "run: python docs/generate_changes.py"
    assert len(re.findall(r"^### [a-z-]+$", page, re.MULTILINE)) > 15


def test_a_stale_whatif_page_is_noticed(root: Path, tmp_path: Path, capsys: Any) -> None:
    generator = _script(root / "docs/generate_changes.py")
    current = generator.page(generator.TARGET.read_text(encoding="utf-8"))
    generator.TARGET = tmp_path / "whatif.md"
    generator.TARGET.write_text(current.replace("### cuda-graph", "### cuda-grap"))
    assert generator.main(["--check"]) == 1
    assert "python docs/generate_changes.py" in capsys.readouterr().err
    assert generator.main([]) == 0
    assert generator.TARGET.read_text(encoding="utf-8") == current
    assert generator.main(["--check"]) == 0


def test_schema_page_names_every_column(root: Path) -> None:
    from diagnose import schema

    page = (root / "docs/schema.md").read_text(encoding="utf-8")
    for table in schema.TABLES:
        section = page.split(f"## {table.name}\n", 1)[1].split("\n## ", 1)[0]
        for column in table.columns:
            assert f"| `{column.name}` |" in section
            assert column.meaning.replace("|", "\\|") in section


def test_the_measure_in_contributing_works(root: Path) -> None:
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    module: dict[str, Any] = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), module)
    [analyzer] = module["ANALYZERS"]
    builder = TraceBuilder(rank=0, world_size=2)
    builder.kernel("gemm", 10, 50, launch=5)
    builder.kernel("gemm", 70, 20, launch=6)
    table = engine.run(analyzer, build_trace(builder))
    assert isinstance(table, Table)
    assert table["duration_ns"].tolist() == [50_000]
    nothing = engine.run(analyzer, build_trace(TraceBuilder(rank=0, world_size=2)))
    assert isinstance(nothing, Unavailable)


def test_the_measure_in_contributing_is_clean(root: Path, tmp_path: Path) -> None:
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "longest_operation.py").write_text(code, encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "longest_operation.py")]
    result = subprocess.run(mypy, cwd=root, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout


def test_architecture_names_what_is_there(root: Path) -> None:
    page = (root / "docs/architecture.md").read_text(encoding="utf-8")
    code = root / "diagnose"
    section = page.split("## Where is what\n", 1)[1].split("\n## ", 1)[0]
    missing, seen = [], 0
    for line in section.splitlines():
        places, _, rest = line.strip("| ").partition("|")
        found = re.findall(r"`([\w/.]+(?:/|\.py|\.toml))`", places)
        seen += len(found)
        missing += [place for place in found if not (code / place).exists()]
        for name in re.findall(r"`([\w/]+(?:/|\.py))`", rest) if found else []:
            if not (code / found[0].rsplit("/", 1)[0] / name).exists():
                missing.append(f"{found[0]}: {name}")
    assert seen > 8, "the table is not found any more"
    assert not missing


def test_every_layer_is_in_the_architecture(root: Path) -> None:
    page = (root / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.split("## Layers\n", 1)[1].split("\n## ", 1)[0]
    modules = {path.stem for path in (root / "diagnose").iterdir() if path.suffix == ".py"}
    modules |= {path.parent.name for path in (root / "diagnose").glob("*/__init__.py")}
    listed = set(re.findall(r"`(\w+)`", section))
    assert {name for name in modules if not name.startswith("_")} - listed == set()


def test_every_page_is_linked_from_the_readme(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", readme))
    assert linked == {f"docs/{page.name}" for page in (root / "docs").glob("*.md")}


def _note_codes(root: Path) -> set[str]:
    """Every code that the package puts on a note; a part that is computed is left open."""
    codes = set()
    for path in (root / "diagnose").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Note":
                named = [word.value for word in node.keywords if word.arg == "code"]
                code = ast.unparse((node.args or named)[0])
                codes.add(re.sub(r"\{[^}]*\}", "*", code.strip("f").strip("'\"")))
    return codes


def test_every_note_is_explained(root: Path) -> None:
    page = (root / "docs/reading-traces.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[a-z`, -]+`) \|", page, re.MULTILINE)
    explained = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}
    given = _note_codes(root)
    errors = {kind.code for kind in _kinds_of(InputError)}
    plain = {code for code in given if re.fullmatch(r"[a-z-]+", code)}
    assert len(plain) > 20, "the search finds nothing any more"
    assert plain - explained == set(), "add them to docs/reading-traces.md"
    assert errors - explained == set(), "a file that is left out gets its error's code"
    families = [code for code in given if "*" in code]
    unknown = {
        code
        for code in explained - plain - errors
        if not any(fnmatch(code, family) for family in families)
    }
    assert unknown == set(), "docs/reading-traces.md explains what is never said"


def _kinds_of(error: type[DiagnoseError]) -> list[type[DiagnoseError]]:
    return [error, *(kind for below in error.__subclasses__() for kind in _kinds_of(below))]


def _drawn(picture: str) -> list[str]:
    """The lines of text in a picture, without their spaces."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(
        r'<text class="report-r[^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)<', picture
    ):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text)))
    lines = ["".join(text for _, text in sorted(rows[y])) for y in sorted(rows)]
    return [re.sub(r"\s", "", line) for line in lines]


def test_picture_shows_what_the_command_prints_today(root: Path) -> None:
    pictures = _script(root / "docs/pictures.py")
    drawn = [line for line in _drawn(pictures.TARGET.read_text(encoding="utf-8")) if line]
    plain = pictures.shown(pictures.printed()).plain.splitlines()
    expected = [line for line in (re.sub(r"\s", "", line) for line in plain) if line]
    assert drawn == expected, "run: python docs/pictures.py"
    assert any("Steps" in line for line in drawn)


def test_pictures_load_nothing_from_elsewhere(root: Path) -> None:
    for picture in (root / "docs").rglob("*.svg"):
        urls = re.findall(r"https?://[^\s\"')]+", picture.read_text(encoding="utf-8"))
        assert not [u for u in urls if "w3.org" not in u and u != "https://www.textualize.io"]


def test_links_between_pages_resolve(root: Path) -> None:
    broken = []
    for page in _pages(root):
        text = CODE.sub("", page.read_text(encoding="utf-8"))
        for groups in LINK.findall(text):
            target = next(group for group in groups if group)
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            if not place.exists():
                broken.append(f"{page.name}: {target}")
            elif anchor and place.suffix == ".md" and anchor not in _anchors(place):
                broken.append(f"{page.name}: {target} (no such heading)")
    assert not broken


_HELP = """
import contextlib, io, json, sys
from diagnose import cli
helps = {}
for verb in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = cli.execute([*verb, "--help"])
    helps[" ".join(verb)] = out.getvalue() if status == 0 else ""
print(json.dumps(helps))
"""


def _helps(verbs: list[list[str]]) -> dict[str, str]:
    """The help of each verb as a terminal of 200 columns gets it. One process for all."""
    result = subprocess.run(
        [sys.executable, "-c", _HELP, json.dumps(verbs)],
        env={"COLUMNS": "200", "PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: dict[str, str] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def verbs() -> dict[str, str]:
    """Verb -> its help, for every verb that the command line has."""
    [whole] = _helps([[]]).values()
    listed = re.findall(r"^[│|\s]+([a-z][a-z-]+)\s{2,}\S", whole, re.MULTILINE)
    return {verb: text for verb, text in _helps([[verb] for verb in listed]).items() if text}


def test_commands_in_the_pages_exist(root: Path, verbs: dict[str, str]) -> None:
    assert {"report", "overlap", "info"} <= verbs.keys()
    unknown = []
    for page in _pages(root):
        code = "\n".join(CODE.findall(page.read_text(encoding="utf-8")))
        unknown += [f"{page.name}: {v}" for v in COMMAND.findall(code) if v not in verbs]
    assert not unknown


def test_options_in_the_pages_exist(root: Path, verbs: dict[str, str]) -> None:
    unknown, seen = [], 0
    for page in _pages(root):
        for code in CODE.findall(page.read_text(encoding="utf-8")):
            for line in code.strip("`").splitlines():
                for verb in COMMAND.findall(line)[:1]:
                    for option in OPTION.findall(line):
                        seen += 1
                        if option not in verbs.get(verb, ""):
                            unknown.append(f"{page.name}: diagnose {verb} {option}")
    assert seen, "no option was found at all"
    assert not unknown


def test_readme_lists_every_command(root: Path, verbs: dict[str, str]) -> None:
    table = (root / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `diagnose ([a-z-]+)", table, re.MULTILINE))
    assert listed == verbs.keys()
