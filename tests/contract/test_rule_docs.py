"""The pages of the rules are those of their docstrings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from diagnose import engine


@pytest.fixture
def generator(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_rules", root / "docs/generate_rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current(generator):
    assert generator.stale() == [], "run: python docs/generate_rules.py"


def test_every_rule_has_a_page_and_a_place_in_the_list(root):
    names = {path.stem for path in (root / "docs/rules").glob("*.md")} - {"README"}
    assert names == set(engine.rules())
    listed = (root / "docs/rules/README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in listed for name in names)


def test_a_stale_page_is_noticed_and_one_of_no_rule_removed(generator, tmp_path, capsys):
    generator.TARGET = tmp_path
    (tmp_path / "no-such-rule.md").write_text("x")
    assert generator.main(["--check"]) == 1
    assert "no-such-rule.md" in capsys.readouterr().err
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    assert not (tmp_path / "no-such-rule.md").exists()
