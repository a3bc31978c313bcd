"""Calls that NCCL makes of itself inside of a collective: with events that are its own.

NCCL puts its kernel behind work of its own on a stream of its own, and orders the streams that it
is given among each other where a communicator is used on several. No other stream is waited for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.hazards.annotations import TEXTS, EventCall, named
from diagnose.analyzers.hazards.streams import Lanes
from diagnose.schema import Activity
from diagnose.trace import Trace

Rows = npt.NDArray[np.int64]

EVENT = "of NCCL"
"""No handle: what stands for all events that it keeps."""

_COLLECTIVE = r"record_param_comms$|nccl:"


def own_calls(trace: Trace, source: int, call_rows: Rows) -> npt.NDArray[np.bool_]:
    """Which calls, rows of ``launches``, were made inside of a collective, on its thread."""
    hosts, calls = trace.host_ops, trace.launches
    around = np.flatnonzero((hosts["source"] == source) & named(hosts, "name", _COLLECTIVE))
    inside = np.zeros(len(call_rows), bool)
    for thread in np.unique(hosts["thread"][around]).tolist():
        mine = around[hosts["thread"][around] == thread]
        mine = mine[np.argsort(hosts["start_ns"][mine], kind="stable")]
        # Ranges nest: the latest end of those that began by then says whether one is open.
        ends = np.maximum.accumulate(hosts["end_ns"][mine])
        place = np.searchsorted(hosts["start_ns"][mine], calls["start_ns"][call_rows], "right") - 1
        open_ = (place >= 0) & (ends[place] >= calls["end_ns"][call_rows])
        inside |= open_ & (calls["thread"][call_rows] == thread)
    return inside


def on_a_stream_of_its_own(trace: Trace, source: int) -> frozenset[int]:
    """Rows of ``host_ops``: collectives whose stream PyTorch first let wait for the current one.

    All others run on the stream on which they were called.
    """
    hosts = trace.host_ops
    mine = hosts["source"] == source
    around = np.flatnonzero(mine & named(hosts, "name", _COLLECTIVE))
    waits = np.flatnonzero(mine & named(hosts, "name", TEXTS[EventCall.STREAM_WAITS]))
    found: set[int] = set()
    for thread in np.unique(hosts["thread"][waits]).tolist():
        at = np.sort(hosts["start_ns"][waits[hosts["thread"][waits] == thread]])
        rows = around[hosts["thread"][around] == thread]
        begun = np.searchsorted(at, hosts["start_ns"][rows])
        found.update(rows[begun < np.searchsorted(at, hosts["end_ns"][rows])].tolist())
    return frozenset(found)


def communication_lanes(trace: Trace, source: int, lanes: Lanes) -> tuple[int, ...]:
    """The lanes of the streams on which NCCL was given work."""
    ops = trace.gpu_ops
    own = (ops["source"] == source) & (ops["activity"] == Activity.COMMUNICATION)
    own &= ops.known("stream")
    places = {*zip(ops["device"][own].tolist(), ops["stream"][own].tolist(), strict=True)}
    return tuple(sorted(lanes.of_stream(place) for place in places))
