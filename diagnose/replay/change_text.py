"""Changes as they are written on the command line: ``id`` or ``id:field=value,field=value``.

A value is text up to the next comma; ``known`` finds the changes by being there.
"""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from diagnose.errors import ExtensionError, UsageError
from diagnose.replay.change import Change

_PACKAGE = "diagnose.replay.changes"
_LIST = "`diagnose whatif --list` shows every change with its fields"
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@cache
def known() -> Mapping[str, type[Change]]:
    """Every change by id, sorted. ExtensionError if two share one or a module has none."""
    package = importlib.import_module(_PACKAGE)
    found: dict[str, type[Change]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_"):
            continue
        exported = getattr(importlib.import_module(f"{_PACKAGE}.{module.name}"), "CHANGES", None)
        if exported is None:
            raise ExtensionError(
                f"{_PACKAGE}.{module.name} does not define CHANGES",
                hint="define it, or begin the module's name with an underscore",
            )
        for kind in exported:
            if kind.id in found:
                raise ExtensionError(f"two changes are called {kind.id!r}", hint="rename one")
            found[kind.id] = kind
    return types.MappingProxyType(dict(sorted(found.items())))


def parse(text: str) -> Change:
    """The change that a text stands for. UsageError if there is no such change, field or value."""
    name, _, rest = text.strip().partition(":")
    kind = known().get(name)
    if kind is None:
        near = difflib.get_close_matches(name, known(), n=1)
        raise UsageError(
            f"there is no change {name!r}",
            hint=f"did you mean {near[0]!r}? {_LIST}" if near else f"{', '.join(known())}. {_LIST}",
        )
    declared = {field.name: field for field in fields(kind) if field.init}
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        field, sign, value = part.partition("=")
        field = field.strip()
        if field not in declared:
            raise UsageError(f"{name} has no field {field!r}", hint=_fields_of(declared, field))
        if not sign:
            raise UsageError(f"{name}: {field} has no value", hint=f"as {name}:{field}=...")
        if field in given:
            raise UsageError(f"{name}: {field} is given twice", hint="give it once")
        given[field] = _value(kind, field, value.strip())
    missing = [one.name for one in declared.values() if one.name not in given and _needed(one)]
    if missing:
        raise UsageError(
            f"{name} needs {' and '.join(missing)}", hint=f"as {name}:{missing[0]}=...; {_LIST}"
        )
    try:
        return kind(**given)
    except ValueError as problem:
        raise UsageError(f"{name}: {problem}", hint=_LIST) from None


def _fields_of(declared: Mapping[str, Field[Any]], field: str) -> str:
    near = difflib.get_close_matches(field, declared, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"{meant}Its fields: {', '.join(declared) or 'it has none'}. {_LIST}"


def text_of(change: Change) -> str:
    """The shortest text that ``parse`` makes this change of: fields at their default left out."""
    said = [
        f"{field.name}={_written(getattr(change, field.name))}"
        for field in fields(change)
        if field.init and getattr(change, field.name) != field.default
    ]
    return f"{change.id}:{','.join(said)}" if said else change.id


def _needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _value(kind: type[Change], field: str, text: str) -> Any:
    wanted = _plain_type(get_type_hints(kind)[field])
    try:
        if wanted is bool:
            return _TRUTH[text.lower()]
        value = wanted(text)
        if wanted is float and not math.isfinite(value):
            raise ValueError
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}[wanted]
        raise UsageError(
            f"{kind.id}: {field}={text!r} is not {expected}", hint=f"as {kind.id}:{field}=2"
        ) from None
    if wanted is str and not text:
        raise UsageError(f"{kind.id}: {field} is empty", hint=_LIST)
    return value


def _plain_type(hint: Any) -> Any:
    """bool, int, float or str; of ``x | None`` and Literal the type of its values."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(one for one in get_args(hint) if one is not type(None))
    return hint if isinstance(hint, type) else type(get_args(hint)[0])
