"""Habits of this repository that a machine can hold."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MEANINGLESS = {"util", "utils", "helper", "helpers", "common", "misc", "manager"}
NOT_OURS = ("tests/cases/data/", "examples/recordings/", "benchmarks/.work/", ".venv")
PACKAGES = ("diagnose", "dashboard")


def _ours(root: Path, pattern: str, *folders: str) -> list[Path]:
    places = [root / folder for folder in folders] or [root]
    found = [path for place in places for path in place.rglob(pattern) if path.is_file()]
    return sorted(path for path in found if not str(path.relative_to(root)).startswith(NOT_OURS))


def _python(root: Path) -> list[Path]:
    return _ours(root, "*.py", *PACKAGES, "tests", "benchmarks", "docs")


def _num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_is_longer_than_500_lines(root: Path) -> None:
    assert not [str(path) for path in _python(root) if _num_lines(path) > 500]


def test_nine_of_ten_files_have_at_most_400_lines(root: Path) -> None:
    lengths = [_num_lines(path) for path in _python(root)]
    assert sum(length > 400 for length in lengths) <= len(lengths) / 10


def test_no_function_is_longer_than_80_lines(root: Path) -> None:
    long = []
    for path in _ours(root, "*.py", *PACKAGES):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 80:
                    long.append(f"{path.name}: {node.name} has {length} lines")
    assert not long


def test_names_say_something(root: Path) -> None:
    names = [path for path in _python(root) if MEANINGLESS & set(path.relative_to(root).parts)]
    names += [path for path in _python(root) if MEANINGLESS & set(path.stem.split("_"))]
    assert not names


def _public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    yield "module", tree
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if not node.name.startswith("_"):
            yield node.name, node


def test_every_public_name_has_a_docstring(root: Path) -> None:
    missing = []
    for path in _ours(root, "*.py", *PACKAGES):
        if path.name.startswith("_") and path.name != "__init__.py":
            continue  # serves its neighbours only
        for name, node in _public(ast.parse(path.read_text(encoding="utf-8"))):
            if not ast.get_docstring(node):  # type: ignore[arg-type]
                missing.append(f"{path.relative_to(root)}: {name}")
    assert not missing


@pytest.mark.parametrize("key", ["symptom", "unprofiled_step_ms"])
def test_the_package_never_reads_the_answers(root: Path, key: str) -> None:
    """Recordings carry what was caused on purpose; a diagnosis that read it would prove nothing."""
    reading = re.compile(rf"""["'.]{key}\b""")
    assert not [
        str(path.relative_to(root))
        for path in _ours(root, "*", *PACKAGES)
        if path.suffix in {".py", ".toml", ".json"} and reading.search(path.read_text("utf-8"))
    ]


def test_the_answers_are_there_to_be_ignored(root: Path) -> None:
    """Otherwise the test above could not fail for the right reason."""
    manifest = (root / "examples/recordings/straggler/recording.json").read_text(encoding="utf-8")
    assert '"symptom": "straggler"' in manifest
    assert '"unprofiled_step_ms"' in manifest


INSTALL = re.compile(r"(?:pip|uv|pipx)\s+(?:pip\s+)?install\s+([^\n`]*)")
OUR_NAMES = re.compile(r"(?<![\w./-])(?:torch-)?(?:diagnose|dashboard)(?![\w./])")


def test_every_printed_install_command_names_our_distribution(root: Path) -> None:
    """`diagnose` and `dashboard` on PyPI belong to others."""
    texts = [
        path
        for pattern in ("*.py", "*.md", "*.toml", "*.yml", "*.yaml")
        for path in _ours(root, pattern, *PACKAGES, "docs", "benchmarks", ".github")
    ]
    texts += [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    named = []
    for path in texts:
        for command in INSTALL.findall(path.read_text(encoding="utf-8")):
            named += [(path.name, name) for name in OUR_NAMES.findall(command)]
    assert named, "no install command was found at all"
    assert not [(file, name) for file, name in named if name != "torch-diagnose"]


def test_install_commands_of_other_names_would_be_found() -> None:
    def names(text: str) -> list[str]:
        return [name for command in INSTALL.findall(text) for name in OUR_NAMES.findall(command)]

    assert names("pip install diagnose") == ["diagnose"]
    assert names("run `pip install -U 'torch-diagnose[fleet]'` first") == ["torch-diagnose"]
    assert names("pip install -e .[dev]") == []


def test_oldest_constraints_are_the_declared_lower_bounds(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bound = re.compile(r"([\w-]+)>=([\w.]+)")
    declared = dict(bound.match(line).groups() for line in project["dependencies"])
    text = (root / ".ci/oldest.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)$", text, re.MULTILINE))
    assert pinned.keys() == declared.keys()
    for name, lowest in declared.items():
        assert f"{pinned[name]}.".startswith(f"{lowest}."), name


def test_inputs_survive_a_checkout(root: Path) -> None:
    """Line endings and bad bytes in the inputs are what is tested: git must not touch them."""
    attributes = (root / ".gitattributes").read_text(encoding="utf-8")
    for folder in ("tests/cases/data", "examples/recordings"):
        [line] = [line for line in attributes.splitlines() if line.startswith(f"{folder}/**")]
        assert "-text" in line.split()
    damaged = (root / "tests/cases/data/parse-bad-strings/invalid-utf8.json").read_bytes()
    with pytest.raises(UnicodeDecodeError):
        damaged.decode("utf-8")
    marked = (root / "tests/cases/data/parse-bad-strings/utf8-bom.json").read_bytes()
    assert marked.startswith(b"\xef\xbb\xbf")
