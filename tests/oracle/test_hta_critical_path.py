"""Our critical path against HolisticTraceAnalysis' on the shipped recordings, within one rank.

HTA's answers are kept as data beside the script that made them
(``hta/critical_path/make_paths.py``). HTA begins a step at its first operation on
the host's mark, has no edge for stream waits whose event was recorded without a
correlation id, and calls waiting for another stream's multiprocessors overhead
between kernels; so its paths are shorter or have less work on them, never other work.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diagnose.analyzers.critical_path import critical_path
from diagnose.analyzers.critical_path.search import PathClass
from diagnose.readers import read
from diagnose.trace import Table, Trace

STORED = Path(__file__).parent / "hta" / "critical_path" / "HolisticTraceAnalysis-0.5.0.json"
PATHS: dict[str, dict[str, Any]] = {
    path["recording"]: path for path in json.loads(STORED.read_text())["paths"]
}
WORK = (PathClass.COMPUTE, PathClass.COMMUNICATION, PathClass.MEMORY)


@cache
def ours(name: str, root: Path) -> tuple[Trace, Table]:
    """The recording's rank 0 alone, and the rows of the step that HTA was asked for."""
    trace = read(root / name / "rank00000.trace.json.gz")
    path = critical_path(trace)
    assert isinstance(path, Table)
    return trace, path.take(path["step_row"] == PATHS[name]["step"])


def duration(trace: Trace, chosen: npt.NDArray[np.bool_]) -> int:
    return int((trace.gpu_ops["end_ns"] - trace.gpu_ops["start_ns"])[chosen].sum())


@pytest.mark.parametrize("name", sorted(PATHS))
def test_the_work_on_htas_path_is_on_ours(recordings: Path, name: str) -> None:
    trace, path = ours(name, recordings)
    on_htas = np.isin(trace.gpu_ops["correlation"], PATHS[name]["gpu_correlations"])
    on_ours = np.zeros(len(trace.gpu_ops), bool)
    on_ours[path["gpu_op_row"][np.isin(path["path_class"], WORK)]] = True
    total = duration(trace, on_htas)
    assert total == pytest.approx(
        1000 * PATHS[name]["parts_us"]["critical_path_operator/gpu_compute_bound"], rel=1e-6
    )
    assert duration(trace, on_htas & on_ours) > 0.97 * total


@pytest.mark.parametrize("name", ["healthy", "straggler", "pageable_copy"])
def test_where_the_gpu_never_ran_dry_the_lengths_agree(recordings: Path, name: str) -> None:
    _, path = ours(name, recordings)
    assert path["length_ns"].sum() / 1000 == pytest.approx(PATHS[name]["total_us"], rel=0.01)


@pytest.mark.parametrize("name", ["data_stall", "host_sync", "launch_bound"])
def test_where_it_did_htas_path_leaves_out_the_host_before_it(recordings: Path, name: str) -> None:
    _, path = ours(name, recordings)
    assert path["length_ns"].sum() / 1000 > 1.1 * PATHS[name]["total_us"]
