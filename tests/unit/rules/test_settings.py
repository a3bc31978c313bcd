"""Thresholds and selection from files, and what is said where they are wrong."""

from __future__ import annotations

import pytest

from diagnose import engine
from diagnose.errors import UsageError
from diagnose.rules._settings import settings_from

RULES = engine.rules()


def settings(tmp_path, text: str, name: str = "diagnose.toml"):
    path = tmp_path / name
    path.write_text(text)
    return settings_from(path, RULES)


def test_a_threshold_is_replaced_and_the_others_keep_their_defaults(tmp_path):
    found = settings(tmp_path, "[rules.straggler-rank]\nmin_lost_pct = 10\n")
    limits = found.thresholds["straggler-rank"]
    assert limits.min_lost_pct == 10.0
    assert isinstance(limits.min_lost_pct, float)
    assert limits.min_compute_ratio == RULES["straggler-rank"].thresholds.min_compute_ratio
    assert found.path == str(tmp_path / "diagnose.toml")


def test_a_pyproject_holds_the_same_under_its_tool(tmp_path):
    text = '[tool.other]\nx = 1\n[tool.diagnose]\nignore = ["host-sync"]\n'
    text += "[tool.diagnose.rules.host-sync]\nmin_idle_pct = 2.5\n"
    found = settings(tmp_path, text, "pyproject.toml")
    assert found.ignore == ("host-sync",)
    assert found.thresholds["host-sync"].min_idle_pct == 2.5


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[rules.stragler-rank]\n", "there is no rule 'stragler-rank'", "straggler-rank"),
        ("[rules.host-sync]\nmin_idle = 1\n", "[rules.host-sync] min_idle is not", "min_idle_pct"),
        ('[rules.host-sync]\nmin_idle_pct = "1"\n', "min_idle_pct = '1' is not a number", "1"),
        ("[rules.host-sync]\nmin_idle_pct = true\n", "min_idle_pct = True is not a number", "1"),
        ("[rules.host-sync]\nmin_idle_pct = -1\n", "min_idle_pct = -1 is not a number", "1"),
        ("[rules.host-sync]\nmin_idle_pct = nan\n", "min_idle_pct = nan is not a number", "1"),
        ("rules = 3\n", "rules is no table", "[rules]"),
        ("[rules]\nhost-sync = 3\n", "rules.host-sync is no table", "[rules.host-sync]"),
        ('ignore = "host-sync"\n', "ignore is no list of names", "ignore ="),
        ('select = ["x"]\n', "select: there is no rule 'x'", "diagnose rules"),
        ("[tool.diagnose]\n", "'tool' is not known", "for a pyproject.toml; here write select"),
        ("thresholds = 1\n", "'thresholds' is not known", "select, ignore, rules"),
        ("= 1\n", "is not valid TOML", "diagnose rules --help"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, said, hint):
    with pytest.raises(UsageError) as refused:
        settings(tmp_path, text)
    assert str(tmp_path / "diagnose.toml") in refused.value.message
    assert said in refused.value.message
    assert hint in refused.value.hint


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the settings .*none\.toml"):
        settings_from(tmp_path / "none.toml", RULES)


def test_the_nearest_file_counts(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "diagnose.toml").write_text('ignore = ["host-sync"]\n')
    assert settings_from(None, RULES, folder=inner).ignore == ("host-sync",)
    (tmp_path / "a" / "diagnose.toml").write_text('ignore = ["launch-bound"]\n')
    assert settings_from(None, RULES, folder=inner).ignore == ("launch-bound",)


def test_a_project_without_our_table_ends_the_search(tmp_path):
    inner = tmp_path / "project"
    inner.mkdir()
    (tmp_path / "diagnose.toml").write_text('ignore = ["host-sync"]\n')
    (inner / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert settings_from(None, RULES, folder=inner).path == ""
    (inner / "pyproject.toml").write_text("[tool.diagnose]\nignore = ['launch-bound']\n")
    assert settings_from(None, RULES, folder=inner).ignore == ("launch-bound",)
