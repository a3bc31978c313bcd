"""What a name means: the only place that knows kernels, collectives and runtime calls.

The knowledge itself is ``names.toml``; a person adds to it with a file of the
same shape (``--classify``), which wins over ours. ``docs/classification.md`` is
made from it.
"""

from __future__ import annotations

import re
from functools import cache
from os import PathLike, fspath
from pathlib import Path

from diagnose import name_patterns
from diagnose.name_patterns import Pattern, PatternFile, function_name
from diagnose.schema import Activity, Call, Kind

OTHER_FAMILY = "other"
_NOT_A_LETTER = re.compile(r"[^0-9A-Za-z]+")


def _squeezed(word: str) -> str:
    return _NOT_A_LETTER.sub("", word).lower()


@cache
def _shipped() -> PatternFile:
    return name_patterns.read(Path(__file__).with_name("names.toml"))


class Classifier:
    """Says what GPU operations, collectives and host calls are, by their names.

    Answers are remembered per name. Names come from traces and are not trusted:
    only their first ``name_patterns.MAX_NAME`` characters count.
    """

    def __init__(self, patterns: PatternFile) -> None:
        self.patterns = patterns
        self._found: dict[tuple[Kind, str], tuple[Pattern | None, str | None]] = {}
        self._collectives = {
            _squeezed(word): one
            for one, written in patterns.collectives.items()
            for word in (*written, one)
        }
        self._element_bytes = {
            _squeezed(word): int(size)
            for size, words in patterns.element_bytes.items()
            for word in words
        }

    @classmethod
    def load(cls, extra: str | PathLike[str] | None = None) -> Classifier:
        """Our knowledge, preceded by that of the TOML file ``extra``.

        Raises ``UsageError`` (file, entry, field) if the file is not right.
        """
        if extra is None:
            return cls(_shipped())
        own = name_patterns.read(extra)
        name_patterns.verify(fspath(extra), own)
        return cls(own + _shipped())

    def activity(self, name: str, kind: Kind) -> tuple[Activity, bool]:
        """Class of a GPU operation, and whether the name settles it.

        Not settled are kernels that compute and communicate at once, and names
        that only sound like a collective.
        """
        entry, _ = self._entry(name, kind)
        if entry is not None and entry.activity is not None:
            return entry.activity, entry.certain
        return (Activity.COMPUTE if kind == Kind.KERNEL else Activity.MEMORY), True

    def family(self, kernel_name: str) -> str:
        """What a compute kernel is for the model: ``gemm``, ``attention``...; else ``other``."""
        function = function_name(kernel_name)
        for entry in self.patterns.families:
            if entry.match(function) and entry.family:
                return entry.family
        return OTHER_FAMILY

    def collective(self, kernel_name: str) -> str | None:
        """The collective that a kernel runs (``all_reduce``...), None if its name does not tell."""
        return self._entry(kernel_name, Kind.KERNEL)[1]

    def _entry(self, name: str, kind: Kind) -> tuple[Pattern | None, str | None]:
        known = self._found.get((kind, name))
        if known is None:
            known = self._found[kind, name] = self._search(name, kind)
        return known

    def _search(self, name: str, kind: Kind) -> tuple[Pattern | None, str | None]:
        function = (
            function_name(name) if kind == Kind.KERNEL else name[: name_patterns.MAX_FUNCTION]
        )
        for entry in self.patterns.of(kind):
            match = entry.match(function)
            if match:
                written = match.groupdict().get("collective") or entry.collective
                return entry, self.normalise(written) if written else None
        return None, None

    def normalise(self, written: str) -> str | None:
        """A collective in one spelling: ``_allgather_base`` -> ``all_gather``.

        None for what is no single collective (``coalesced``, ``wait``) or unknown.
        """
        return self._collectives.get(_squeezed(written))

    def element_bytes(self, dtype: str) -> int | None:
        """Bytes of one element of a type as PyTorch, C++ or NCCL write it; None if unknown."""
        return self._element_bytes.get(_squeezed(dtype.rpartition("::")[2].rpartition(".")[2]))

    def message_bytes(
        self,
        collective: str | None,
        in_elements: int | None,
        out_elements: int | None,
        dtype: str | None,
    ) -> int | None:
        """Size of a message as nccl-tests counts it, in bytes.

        All-gather and gather: the whole output. Reduce-scatter and scatter: the
        whole input. Otherwise the larger of both, which are equal but for
        all-to-all with uneven parts. None where an element count or the type is
        missing (negative counts, thus ``schema.NULL``, are missing).
        """
        size = self.element_bytes(dtype) if dtype else None
        if size is None:
            return None
        taken = in_elements if in_elements is not None and in_elements >= 0 else None
        given = out_elements if out_elements is not None and out_elements >= 0 else None
        if collective in ("all_gather", "gather"):
            elements = given
        elif collective in ("reduce_scatter", "scatter"):
            elements = taken
        elif collective is None and taken != given:
            return None
        else:
            elements = max((n for n in (taken, given) if n is not None), default=None)
        return None if elements is None else elements * size

    def call(self, name: str) -> Call:
        """What a host call into the GPU runtime or driver is for."""
        for entry in self.patterns.calls:
            if entry.match(name) and entry.call is not None:
                return entry.call
        return Call.OTHER

    def launches_collective(self, op_name: str) -> bool:
        """Whether copies launched by this host operator move data between GPUs."""
        for entry in self.patterns.host_ops:
            if entry.match(op_name):
                return entry.communicates
        return False

    @property
    def host_prefixes(self) -> tuple[str, ...]:
        """Beginnings of the host operators that decide what a GPU operation is."""
        found = {entry.literal for entry in self.patterns.host_ops if entry.communicates}
        return tuple(sorted(found - {""}))
