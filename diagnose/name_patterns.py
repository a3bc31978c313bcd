"""Pattern files: the TOML behind ``diagnose.names``, read and checked.

A pattern is compiled when the first name that could match it comes by: a
process meets a few families of kernels, not all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import Any

from diagnose.errors import InputNotFoundError, UsageError
from diagnose.schema import Activity, Call, Kind

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_NAME = 4096
"""Characters of a name that are looked at."""
MAX_FUNCTION = 256
"""Characters of a function's name that patterns see: its end, which bounds what they can cost."""

_BRACKET = re.compile(r"[<>(]")
_ANONYMOUS = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|_GLOBAL__N__?\w*::|`anonymous[^:]*::"
)
_MANGLED = re.compile(r"_Z(L|N[KVr]*L?)?(?=\d)")
_LENGTH = re.compile(r"[1-9]\d{0,3}")
_TAIL = re.compile(r"(?:\.kd|\.cloned?(?:\.\d+)?| ?\[clone [^\]]*\])+$")


def function_name(name: str) -> str:
    """The qualified name of the function itself, as ``vllm::cross_device_reduce_1stage``.

    Left out: the return type, template arguments, parameters, anonymous
    namespaces, Itanium mangling, and the suffixes of compilers (``.kd``). Linear
    in the length of the name; unbalanced brackets (names cut short) are fine.
    """
    name = name[:MAX_NAME].strip()
    mangled = _MANGLED.match(name)
    if mangled:
        return _demangled(name, mangled)[-MAX_FUNCTION:]
    if "<" not in name and "(" not in name:
        return _TAIL.sub("", name).rpartition(" ")[2].removeprefix("::")[-MAX_FUNCTION:]
    return _undecorated(_ANONYMOUS.sub("", name))[-MAX_FUNCTION:]


def _undecorated(name: str) -> str:
    kept: list[str] = []
    depth = position = 0
    for bracket in _BRACKET.finditer(name):
        at = bracket.start()
        character = name[at]
        if character == "<":
            if not depth:
                kept.append(name[position:at])
            depth += 1
        elif character == ">":
            if depth and name[at - 1] != "-":
                depth -= 1
                position = at + 1
        elif not depth:
            kept.append(name[position:at])
            break
    else:
        if not depth:
            kept.append(name[position:])
    whole = _TAIL.sub("", "".join(kept).strip())
    return whole.rpartition(" ")[2].lstrip("*&").removeprefix("::")


def _demangled(name: str, mangled: re.Match[str]) -> str:
    nested = (mangled.group(1) or "").startswith("N")
    position = mangled.end()
    parts: list[str] = []
    while length := _LENGTH.match(name, position):
        position = length.end() + int(length.group())
        parts.append(name[length.end() : position])
        if not nested:
            break
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N_"))


def _leading_literal(pattern: str) -> str:
    """What every match begins with; "" if the pattern does not say it plainly."""
    plain = re.match(r"[\w:]+", pattern)
    if not plain:
        return ""
    rest = pattern[plain.end() :]
    depth = 0
    for character in re.sub(r"\\.|\[[^\]]*\]", "", rest):
        depth += (character == "(") - (character == ")")
        if character == "|" and not depth:
            return ""
    return plain.group()[:-1] if rest[:1] in ("?", "*", "{") else plain.group()


@dataclass(frozen=True)
class Pattern:
    """One entry. It matches a whole function name, from any ``::`` on.

    ``activity`` belongs to entries of kernels, copies and fills, ``call`` to those
    of runtime calls, ``communicates`` to those of operators on the host, ``family``
    to those of kernel families.
    """

    pattern: str
    since: str = ""
    example: str = ""
    why: str = ""
    activity: Activity | None = None
    collective: str | None = None
    certain: bool = True
    call: Call | None = None
    communicates: bool = False
    family: str | None = None
    literal: str = field(default="", repr=False)

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(rf"(?:\A|::)(?:{self.pattern})\Z")

    def match(self, function: str) -> re.Match[str] | None:
        """The match against a name from ``function_name`` (or a copy's or call's name as it is)."""
        if self.literal not in function:
            return None
        return self._expression.search(function)


@dataclass(frozen=True)
class PatternFile:
    """The entries of one file, in order: the first that matches decides."""

    kernels: tuple[Pattern, ...] = ()
    copies: tuple[Pattern, ...] = ()
    fills: tuple[Pattern, ...] = ()
    calls: tuple[Pattern, ...] = ()
    host_ops: tuple[Pattern, ...] = ()
    collectives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """One spelling -> the ways it is written."""
    element_bytes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Bytes of an element, as text -> names of types."""
    families: tuple[Pattern, ...] = ()

    def of(self, kind: Kind) -> tuple[Pattern, ...]:
        return (self.kernels, self.copies, self.fills)[kind]

    def __add__(self, other: PatternFile) -> PatternFile:
        return PatternFile(
            self.kernels + other.kernels,
            self.copies + other.copies,
            self.fills + other.fills,
            self.calls + other.calls,
            self.host_ops + other.host_ops,
            _joined(self.collectives, other.collectives),
            _joined(self.element_bytes, other.element_bytes),
            self.families + other.families,
        )


def _joined(
    first: Mapping[str, tuple[str, ...]], second: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    return {key: first.get(key, ()) + second.get(key, ()) for key in {**first, **second}}


_GPU_FIELDS = {
    "pattern": str,
    "class": str,
    "collective": str,
    "since": str,
    "example": str,
    "certain": bool,
    "why": str,
}
_COMMON_FIELDS = {"pattern": str, "since": str, "example": str, "why": str}
_SECTIONS: Mapping[str, tuple[str, Mapping[str, type]]] = {
    "kernel": ("kernels", _GPU_FIELDS),
    "memcpy": ("copies", _GPU_FIELDS),
    "memset": ("fills", _GPU_FIELDS),
    "call": ("calls", {**_COMMON_FIELDS, "call": str}),
    "host_op": ("host_ops", {**_COMMON_FIELDS, "communicates": bool}),
    "family": ("families", {**_COMMON_FIELDS, "family": str}),
}
_WORDS = ("collectives", "element_bytes")


def read(path: str | PathLike[str]) -> PatternFile:
    """Read a pattern file.

    Raises ``InputNotFoundError`` if there is none, ``UsageError`` naming file,
    entry and field if it is not as ``docs/classification.md`` describes.
    """
    path = fspath(path)
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        raise InputNotFoundError(
            f"{path}: no such pattern file", hint="give the path of a TOML file"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8", hint=_HINT) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}", hint=_HINT) from None
    return _interpret(path, content)


_HINT = "docs/classification.md shows the shape of a pattern file"


def _interpret(path: str, content: Mapping[str, Any]) -> PatternFile:
    for section in content:
        if section not in _SECTIONS and section not in _WORDS:
            known = ", ".join([*(f"[[{name}]]" for name in _SECTIONS), *_WORDS])
            raise UsageError(f"{path}: unknown section {section!r}", hint=f"known are {known}")
    patterns: dict[str, Any] = {}
    for section, (attribute, fields) in _SECTIONS.items():
        entries = content.get(section, [])
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise UsageError(f"{path}: {section} is not a list of tables", hint=f"[[{section}]]")
        patterns[attribute] = tuple(
            _entry(f"{path}: {section} entry {number}", section, fields, entry)
            for number, entry in enumerate(entries, 1)
        )
    for section in _WORDS:
        patterns[section] = _spellings(f"{path}: {section}", content.get(section, {}))
    return PatternFile(**patterns)


def _entry(where: str, section: str, fields: Mapping[str, type], entry: dict[str, Any]) -> Pattern:
    for key, value in entry.items():
        if key not in fields:
            raise UsageError(f"{where}: unknown field {key!r}", hint=f"known are {list(fields)}")
        if type(value) is not fields[key]:
            raise UsageError(f"{where}: {key} is {value!r}, not a {fields[key].__name__}")
    needed = {
        "call": ("pattern", "call"),
        "host_op": ("pattern",),
        "family": ("pattern", "family"),
    }.get(section, ("pattern", "class"))
    for key in needed:
        if not entry.get(key):
            raise UsageError(f"{where}: {key} is missing", hint=_HINT)
    return Pattern(
        pattern=entry["pattern"],
        since=entry.get("since", ""),
        example=entry.get("example", ""),
        why=entry.get("why", ""),
        activity=_choice(where, "class", Activity, entry.get("class")),
        collective=entry.get("collective"),
        certain=entry.get("certain", True),
        call=_choice(where, "call", Call, entry.get("call")),
        communicates=entry.get("communicates", True),
        family=entry.get("family"),
        literal=_leading_literal(entry["pattern"]),
    )


def _choice(where: str, key: str, choices: Any, written: str | None) -> Any:
    if written is None:
        return None
    for choice in choices:
        if choice.name.lower() == written:
            return choice
    known = ", ".join(choice.name.lower() for choice in choices)
    raise UsageError(f"{where}: {key} is {written!r}", hint=f"one of {known}")


def _spellings(where: str, table: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is not a table", hint=_HINT)
    for key, words in table.items():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{where}: {key} is {words!r}, not a list of texts", hint=_HINT)
        if where.endswith("element_bytes") and not (key.isascii() and key.isdecimal()):
            raise UsageError(f"{where}: {key} is no number of bytes", hint=_HINT)
    return {key: tuple(words) for key, words in table.items()}


def verify(path: str, file: PatternFile) -> None:
    """Compile every pattern and hold every example against its own.

    Raises ``UsageError`` naming file, entry and field. For files of users: it costs
    what lazy compilation saves.
    """
    for section, (attribute, _) in _SECTIONS.items():
        entries: Iterable[Pattern] = getattr(file, attribute)
        for number, entry in enumerate(entries, 1):
            where = f"{path}: {section} entry {number}"
            try:
                re.compile(entry.pattern)
            except re.error as error:
                raise UsageError(
                    f"{where}: pattern {entry.pattern!r} is no regular expression: {error}"
                ) from None
            if section == "host_op" and not entry.literal:
                raise UsageError(
                    f"{where}: pattern {entry.pattern!r} does not begin with plain text",
                    hint="readers keep the operators that begin so; write it as 'my_ops::.*'",
                )
            whole = section not in ("kernel", "family")
            named = entry.example if whole else function_name(entry.example)
            if entry.example and not entry.match(named):
                raise UsageError(
                    f"{where}: the example {entry.example!r} does not match the pattern",
                    hint=f"a pattern has to match all of {named!r}, from any :: on",
                )
