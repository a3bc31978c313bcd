"""Kernels by name: their family, and the same kernels in another recording."""

from __future__ import annotations

from os import PathLike
from typing import NamedTuple

import numpy as np

from diagnose.contention._occurrences import Occurrences
from diagnose.intervals import Array
from diagnose.names import Classifier
from diagnose.schema import NO_ROW
from diagnose.trace import Trace


class Families(NamedTuple):
    """The family of each group of kernels."""

    of_group: Array
    names: tuple[str, ...]


def families(
    trace: Trace, seen: Occurrences, classify: str | PathLike[str] | None = None
) -> Families:
    """The families by the tables of ``diagnose.names``; ``classify``: a file that extends them."""
    classifier = Classifier.load(classify)
    names, place = np.unique(trace.gpu_ops["name"][seen.group_row], return_inverse=True)
    said = [classifier.family(trace.strings[name]) for name in names.tolist()]
    known = sorted(set(said))
    of_name = np.array([known.index(one) for one in said], np.int64)
    return Families(of_name[place.reshape(-1)], tuple(known))


def matched_groups(trace: Trace, seen: Occurrences, other: Trace, theirs: Occurrences) -> Array:
    """For each group of ``theirs`` the same kernel's group in ``seen``, or ``NO_ROW``.

    The same: on the GPU of the same rank and device number (of the same place among the
    GPUs, where ranks are unknown), of the same name, launch shape and input shapes.
    """
    ours = {key: group for group, key in enumerate(_keys(trace, seen))}
    return np.array([ours.get(key, NO_ROW) for key in _keys(other, theirs)], np.int64)


def _keys(trace: Trace, seen: Occurrences) -> list[tuple[object, ...]]:
    ranked = all(gpu.rank is not None for gpu in trace.gpus)
    places = [(gpu.rank, gpu.device) if ranked else number for number, gpu in enumerate(trace.gpus)]
    gpu_of_group = np.zeros(seen.num_groups, np.int64)
    gpu_of_group[seen.group] = seen.gpu
    return list(
        zip(
            (places[gpu] for gpu in gpu_of_group.tolist()),
            trace.strings.decode(trace.gpu_ops["name"][seen.group_row]),
            trace.strings.decode(trace.gpu_ops["launch_shape"][seen.group_row]),
            trace.strings.decode(seen.group_shapes),
            strict=True,
        )
    )
