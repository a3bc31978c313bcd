"""Thresholds and selected rules from a file: ``diagnose.toml``, or a pyproject.toml's table.

::

    # diagnose.toml; in a pyproject.toml the same under [tool.diagnose]
    select = ["straggler-rank"]   # only these rules; leave it out for all
    ignore = ["power-capped"]

    [rules.straggler-rank]
    min_share_pct = 10.0
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnose.errors import UsageError
from diagnose.rules._rule import Rules, Thresholds, described

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "diagnose.toml"
_PYPROJECT = "pyproject.toml"
_KEYS = ("select", "ignore", "rules")


@dataclass(frozen=True)
class Settings:
    """What a file (or nothing) says about the rules. Checked against those that exist."""

    path: str = ""
    select: tuple[str, ...] = ()
    """Empty: all."""
    ignore: tuple[str, ...] = ()
    thresholds: Mapping[str, Thresholds] = field(default_factory=dict)
    """Rule -> its thresholds, where they differ from the defaults."""


def settings_from(path: Path | None, rules: Rules, *, folder: Path | None = None) -> Settings:
    """The settings of a file; without one those of the nearest file around ``folder``, if any.

    UsageError, with file and key, for what is not known or has another type.
    """
    if path is None:
        path = _nearest((folder or Path.cwd()).resolve())
        if path is None:
            return Settings()
    content = _read(path)
    if path.name == _PYPROJECT:
        content = _table(content.get("tool", {}), path, "tool").get("diagnose", {})
        content = _table(content, path, "tool.diagnose")
    return _checked(content, path, rules)


def known_rules(names: Iterable[str], rules: Rules, place: str) -> tuple[str, ...]:
    """The names as they are. UsageError, with near misses, for one that is no rule."""
    found = tuple(name.strip() for name in names if name.strip())
    for name in found:
        if name not in rules:
            raise UsageError(
                f"{place}: there is no rule {name!r}", hint=_near(name, rules, "diagnose rules")
            )
    return found


def _nearest(folder: Path) -> Path | None:
    for place in (folder, *folder.parents):
        if (place / FILE).is_file():
            return place / FILE
        project = place / _PYPROJECT
        if project.is_file():
            # The first project file ends the search: what lies above belongs to others.
            return project if "diagnose" in _read(project).get("tool", {}) else None
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(
            f"cannot read the settings {path}: {problem.strerror or problem}",
            hint="give --config a TOML file",
        ) from None
    except ValueError as problem:
        raise UsageError(
            f"{path} is not valid TOML: {problem}", hint="see `diagnose rules --help`"
        ) from None


def _table(value: Any, path: Path, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} is no table", hint=f"write it as [{name}]")
    return value


def _checked(content: Mapping[str, Any], path: Path, rules: Rules) -> Settings:
    for key in content:
        if key not in _KEYS:
            hint = f"known are {', '.join(_KEYS)}"
            if key == "tool":
                hint = f"[tool.diagnose] is for a {_PYPROJECT}; here write {hint[10:]} at the top"
            raise UsageError(f"{path}: {key!r} is not known", hint=hint)
    chosen = {key: _names(content.get(key, []), path, key, rules) for key in ("select", "ignore")}
    given = _table(content.get("rules", {}), path, "rules")
    known_rules(given, rules, f"{path}: [rules]")
    thresholds = {
        name: _replaced(rules[name].thresholds, _table(values, path, f"rules.{name}"), path, name)
        for name, values in given.items()
    }
    return Settings(str(path), chosen["select"], chosen["ignore"], thresholds)


def _names(value: Any, path: Path, key: str, rules: Rules) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(
            f"{path}: {key} is no list of names", hint=f'write {key} = ["straggler-rank"]'
        )
    return known_rules(value, rules, f"{path}: {key}")


def _replaced(
    thresholds: Thresholds, values: Mapping[str, Any], path: Path, rule: str
) -> Thresholds:
    known = {one.name: one.default for one in described(thresholds)}
    for name, value in values.items():
        place = f"{path}: [rules.{rule}] {name}"
        if name not in known:
            raise UsageError(
                f"{place} is not a threshold of {rule}",
                hint=_near(name, known, f"diagnose explain {rule}"),
            )
        whole = isinstance(known[name], int)
        good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value < 0:
            kind = "a whole number" if whole else "a number"
            raise UsageError(
                f"{place} = {value!r} is not {kind} of 0 or more",
                hint=f"the default is {known[name]:g}",
            )
    typed = {name: type(known[name])(value) for name, value in values.items()}
    return replace(thresholds, **typed)


def _near(name: str, known: Iterable[str], command: str) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"see `{command}`"
