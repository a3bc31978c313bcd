"""Host operators that launch collectives, and which of them launched a GPU operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.names import Classifier
from diagnose.readers.assemble import inside
from diagnose.readers.assemble.part import Rows
from diagnose.readers.raw import Columns
from diagnose.schema import NO_ROW


@dataclass(frozen=True)
class Launchers:
    """One entry an operator. ``metadata``: its row in the collectives' metadata, or ``NO_ROW``."""

    external_id: npt.NDArray[np.int64]
    spans: inside.Spans
    metadata: Rows

    def __len__(self) -> int:
        return len(self.external_id)

    def take(self, mask: npt.NDArray[np.bool_]) -> Launchers:
        return Launchers(
            self.external_id[mask],
            inside.Spans(
                self.spans.thread[mask], self.spans.start_ns[mask], self.spans.end_ns[mask]
            ),
            self.metadata[mask],
        )

    def by_id(self, external_id: npt.NDArray[np.int64]) -> Rows:
        """The operator with each External id (0 and less is none), else ``NO_ROW``."""
        found = inside.first_with(self.external_id, external_id)
        found[external_id <= 0] = NO_ROW
        return found

    def by_time(self, gpu: Columns, calls: Columns) -> Rows:
        """The operator on the launching thread that holds each launch, else ``NO_ROW``."""
        found = np.full(len(gpu["launch_row"]), NO_ROW, np.int64)
        launched = np.flatnonzero(gpu["launch_row"] >= 0)
        if len(self) and len(launched):
            rows = gpu["launch_row"][launched]
            found[launched] = inside.latest(
                self.spans, calls["thread"][rows], calls["start_ns"][rows]
            )
        return found


def find(host: Columns, metadata: Columns, strings: list[str], classifier: Classifier) -> Launchers:
    """Operators whose name says that they launch collectives, or that carry metadata of one."""
    by_name = np.zeros(len(strings) + 1, bool)
    for code in np.unique(host["name"]).tolist():
        if code >= 0 and classifier.launches_collective(strings[code]):
            by_name[code] = True
    on_host = np.flatnonzero(~metadata["on_gpu"])
    orders = metadata["order"][on_host]
    rows = np.flatnonzero(by_name[host["name"]] | np.isin(host["op_id"], orders))
    carried = inside.first_with(orders, host["op_id"][rows])
    carried[carried >= 0] = on_host[carried[carried >= 0]]
    spans = inside.Spans(host["thread"][rows], host["start_ns"][rows], host["end_ns"][rows])
    return Launchers(host["external_id"][rows], spans, carried)
