"""The table ``collectives``: what is known of each GPU operation that is communication.

Metadata are looked for on the operation itself, then on the ``record_param_comms``
with its External id, then on the one around its launch on the launching thread.
Else only the kernel's name tells.

PyTorch describes a collective once. Where one description stands for several
operations on a GPU (coalesced collectives, copies by several engines), the
elements stand in each row as written, but ``bytes`` is null: the message is that
of all of them together, and counting it for each, or for one, would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from diagnose.names import Classifier
from diagnose.readers.assemble.inside import first_with
from diagnose.readers.assemble.launchers import Launchers
from diagnose.readers.assemble.part import Rows
from diagnose.readers.raw import Columns
from diagnose.schema import NO_ROW, NULL, Activity, Kind
from diagnose.trace import Note

_ORIGINS = ("kernel", "record_param_comms", "name")
_COPIED = (
    ("name", "dtype", "group", "group_ranks", "in_addresses", "out_addresses"),
    (
        "in_elements",
        "out_elements",
        "group_size",
        "sequence",
    ),
)


def table(
    gpu: Columns,
    calls: Columns,
    launchers: Launchers,
    metadata: Columns,
    strings: list[str],
    classifier: Classifier,
    rank: int | None,
) -> Columns:
    """The table ``collectives`` of one process. ``strings`` is added to. ``gpu`` is complete."""
    rows = np.flatnonzero(gpu["activity"] == Activity.COMMUNICATION)
    ops = {name: column[rows] for name, column in gpu.items()}
    found, origin, record = _metadata_rows(ops, calls, launchers, metadata)
    result: Columns = {"gpu_op_row": rows.astype(np.int64)}
    for names, null in zip(_COPIED, (NO_ROW, NULL), strict=True):
        for name in names:
            result[name] = np.append(metadata[name], np.array([null], metadata[name].dtype))[found]
    codes = _Codes(strings)
    origins = np.array([codes.of(text) for text in _ORIGINS], np.int32)
    result["origin"] = origins[origin]
    result["collective"] = _normalised(ops, result["name"], strings, codes, classifier)
    result["bytes"] = _bytes(result, strings, classifier)
    result["bytes"][_shared(record, ops["device"])] = NULL
    result["peer"] = _peers(result["name"], found, metadata, strings, rank)
    return result


def notes(columns: Columns, path: str) -> list[Note]:
    """Descriptions shared by several operations, whose message sizes stay unknown."""
    described = (columns["in_elements"] != NULL) | (columns["out_elements"] != NULL)
    count = int((described & (columns["bytes"] == NULL) & (columns["dtype"] >= 0)).sum())
    if not count:
        return []
    sentence = (
        f"{path}: described collective operations of unknown message size: {count} (one "
        "description stands for several operations, or the element type is unknown); they have no "
        "bandwidth"
    )
    return [Note("message-size-unknown", "info", sentence, count)]


def _metadata_rows(
    ops: Columns, calls: Columns, launchers: Launchers, metadata: Columns
) -> tuple[Rows, npt.NDArray[np.int8], Rows]:
    """For each operation: row of its metadata, index into ``_ORIGINS``, id of the description."""
    count = len(ops["op_id"])
    on_gpu = np.flatnonzero(metadata["on_gpu"])
    own = first_with(metadata["order"][on_gpu], ops["op_id"])
    found = np.where(own >= 0, on_gpu[own] if len(on_gpu) else NO_ROW, NO_ROW)
    carriers = launchers.take(launchers.metadata >= 0)
    by_id = carriers.by_id(ops["external_id"])
    carrier = np.where(by_id >= 0, by_id, carriers.by_time(ops, calls))
    from_host = (found < 0) & (carrier >= 0)
    if len(carriers):
        found = np.where(from_host, carriers.metadata[carrier], found)
    each = -np.arange(count, dtype=np.int64) - 2
    record = np.where(carrier >= 0, carrier, each)
    # Without the operator, kernels with one External id still share its description.
    orphan = (by_id < 0) & (own >= 0) & (ops["external_id"] > 0)
    record[orphan] = len(carriers) + ops["external_id"][orphan]
    origin = np.where(found < 0, 2, np.where(from_host, 1, 0)).astype(np.int8)
    return found, origin, record


def _shared(record: Rows, device: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Operations whose description stands for another one on the same GPU too."""
    if not len(record):
        return np.zeros(0, bool)
    order = np.lexsort((device, record))
    same = (record[order][1:] == record[order][:-1]) & (device[order][1:] == device[order][:-1])
    shared = np.zeros(len(record), bool)
    shared[order[1:][same]] = True
    shared[order[:-1][same]] = True
    return shared


def _normalised(
    ops: Columns,
    names: npt.NDArray[np.int32],
    strings: list[str],
    codes: _Codes,
    classifier: Classifier,
) -> npt.NDArray[np.int32]:
    """The collective in one spelling: by its written name, else by the kernel's."""
    written = _mapped(names, lambda code: codes.maybe(classifier.normalise(strings[code])))
    kernels = np.where(ops["kind"] == Kind.KERNEL, ops["name"], NO_ROW)
    by_kernel = _mapped(kernels, lambda code: codes.maybe(classifier.collective(strings[code])))
    return np.where(written >= 0, written, by_kernel).astype(np.int32)


def _bytes(columns: Columns, strings: list[str], classifier: Classifier) -> Rows:
    keys = ("collective", "in_elements", "out_elements", "dtype")
    if not len(columns["name"]):
        return np.empty(0, np.int64)
    values = np.stack([columns[key].astype(np.int64) for key in keys], axis=1)
    distinct, which = np.unique(values, axis=0, return_inverse=True)
    sizes = np.full(len(distinct), NULL, np.int64)
    for row, (collective, taken, given, dtype) in enumerate(distinct.tolist()):
        size = classifier.message_bytes(
            strings[collective] if collective >= 0 else None,
            taken if taken != NULL else None,
            given if given != NULL else None,
            strings[dtype] if dtype >= 0 else None,
        )
        if size is not None and size < 2**62:
            sizes[row] = size
    result: Rows = sizes[which.reshape(-1)]
    return result


def _peers(
    names: npt.NDArray[np.int32],
    found: Rows,
    metadata: Columns,
    strings: list[str],
    rank: int | None,
) -> Rows:
    """The other rank of a send or receive; by the name, else by which of both is not this rank."""
    source = np.append(metadata["source_rank"], NULL)[found]
    destination = np.append(metadata["destination_rank"], NULL)[found]
    sends = _mapped(names, lambda code: int("send" in strings[code].lower())) == 1
    receives = _mapped(names, lambda code: int("recv" in strings[code].lower())) == 1
    peer = np.full(len(names), NULL, np.int64)
    if rank is not None:
        peer = np.where(source == rank, destination, np.where(destination == rank, source, NULL))
    peer = np.where(sends & ~receives, destination, peer)
    peer = np.where(receives & ~sends, source, peer)
    result: Rows = np.where(peer < 0, NULL, peer).astype(np.int64)
    return result


def _mapped(codes: npt.NDArray[np.int32], meaning: Callable[[int], int]) -> npt.NDArray[np.int32]:
    """``meaning`` of each code, asked once for each distinct one; ``NO_ROW`` for ``NO_ROW``."""
    distinct, which = np.unique(codes, return_inverse=True)
    values = [meaning(code) if code >= 0 else NO_ROW for code in distinct.tolist()]
    return np.array(values, np.int32)[which]


class _Codes:
    """Codes for words that the file itself may not contain."""

    def __init__(self, strings: list[str]) -> None:
        self.strings = strings
        self.added: dict[str, int] = {}

    def of(self, text: str) -> int:
        if text not in self.added:
            self.added[text] = len(self.strings)
            self.strings.append(text)
        return self.added[text]

    def maybe(self, text: str | None) -> int:
        return NO_ROW if text is None else self.of(text)
