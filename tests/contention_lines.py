"""Timelines of kernels and collectives for contention, worked out by hand. Microseconds."""

from __future__ import annotations

from diagnose.analysis import Unavailable
from tests.builder import TraceBuilder, build_trace

US = 1000


class Line:
    """Kernels one after the other on one GPU, each alone or beside a collective.

    ``ran(kernel, 1000)`` alone; ``ran(kernel, 1600, 1600)`` wholly beside an all-gather;
    ``ran(kernel, 1300, 800)`` beside it for its first 800 us.
    """

    def __init__(self, rank=0, device=0, builder=None):
        self.builder = builder or TraceBuilder(rank=rank, world_size=2)
        self.device, self.now = device, 0

    def ran(self, name, duration, beside=0, *, kind="_allgather_base", **rest):
        rest.setdefault("device", self.device)
        if beside:
            self.builder.collective(kind, self.now, beside, device=self.device)
        self.builder.kernel(name, self.now, duration, **rest)
        self.now += duration + 10
        return self

    def times(self, number, name, duration, beside=0, **rest):
        for _ in range(number):
            self.ran(name, duration, beside, **rest)
        return self

    @property
    def trace(self):
        return build_trace(self.builder)


def row_of(table, **wanted):
    """The only row with these values, as a dict."""
    assert not isinstance(table, Unavailable), table
    rows = range(len(table))
    texts = {column.name for column in table.schema.columns if column.text}
    values = {c.name: table.texts(c.name) if c.name in texts else table[c.name].tolist()
              for c in table.schema.columns}  # fmt: skip
    found = [row for row in rows if all(values[key][row] == value for key, value in wanted.items())]
    assert len(found) == 1, (wanted, values)
    return {key: value[found[0]] for key, value in values.items()}
