"""What host operators tell: how many there are, and the input shapes of what they launched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.readers.assemble import inside
from diagnose.readers.raw import Columns, RawFile
from diagnose.schema import NO_ROW, Detail

_CATEGORY = "cpu_op"


def shapes(
    external_id: npt.NDArray[np.int64], host: Columns, others: Columns
) -> npt.NDArray[np.int32]:
    """The input shapes of the operator with each External id (0 and less is none).

    ``host`` are events kept whole, ``others`` operators of which little else is. Where an id
    is written twice, the first counts.
    """
    ids = np.concatenate([host["external_id"], others["external_id"]])
    codes = np.concatenate([host["shapes"], others["shapes"]])
    told = np.flatnonzero((codes >= 0) & (ids > 0))
    row = inside.first_with(ids[told], external_id)
    known = (row >= 0) & (external_id > 0)
    found = np.full(len(external_id), NO_ROW, np.int32)
    found[known] = codes[told[row[known]]]
    return found


def count(raw: RawFile, detail: Detail) -> int | None:
    """Operators of PyTorch of a process; None where they were not read."""
    if detail < Detail.SHAPES:
        return None
    is_op = np.array([text == _CATEGORY for text in raw.strings] + [False])
    groups = (raw.host, raw.operators)
    return int(sum(is_op[columns["category"]].sum() for columns in groups))
