"""The table of nccl-tests, as its versions print it and as logs carry it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.errors import EmptyInputError, InputNotFoundError, NotATraceError, UsageError
from diagnose.readers.nccl_tests import ReferencePoint, read

NEW = """\
# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=22907
# Collective test starting: all_gather_perf_mpi
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 134217728 step: 2(factor) warmup iters: 10 iters: 50
#
# Using devices
#  Rank  0 Group  0 Pid 2989375 on        lab device  0 [0000:02:00] NVIDIA H100
#  Rank  1 Group  0 Pid 2989376 on        lab device  1 [0000:03:00] NVIDIA H100
lab:2989375:2989375 [0] NCCL INFO Bootstrap: Using enp39s0:10.0.10.221<0>
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           0             0     float    none      -1    10.16    0.00    0.00       0    10.15    0.00    0.00       0
     1048576        131072     float    none      -1  2189.16    0.48    0.24       0  2190.15    0.48    0.25       0
     2097152        262144     float    none      -1  2193.39    0.96    0.48     N/A  2193.91    0.96    0.47     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.36
# Collective test concluded: all_gather_perf_mpi
"""  # noqa: E501 (as printed)

OLD = """\
$ mpirun -np 4 ./build/all_reduce_perf -b 32M -e 64M -f 2
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#   Rank  0 Pid    195 on node device  0 [0x00] Tesla K80
#   Rank  1 Pid    196 on node device  1 [0x00] Tesla K80
#   Rank  2 Pid    198 on node device  2 [0x00] Tesla K80
#   Rank  3 Pid    197 on node device  3 [0x00] Tesla K80
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
node:195:195 [0] NCCL INFO Launch mode Parallel
    33554432       8388608     float     sum    19902    1.69    2.53  2e-07    19898    1.69    2.54  2e-07
"""  # noqa: E501


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_new_table(tmp_path: Path) -> None:
    assert read(_file(tmp_path, NEW)) == (
        ReferencePoint("all_gather", 1048576, 0.25, 2, 1),
        ReferencePoint("all_gather", 2097152, 0.48, 2, 1),
    )


def test_old_table_named_by_its_command_line(tmp_path: Path) -> None:
    assert read(_file(tmp_path, OLD)) == (ReferencePoint("all_reduce", 33554432, 2.54, 4, 1),)


def test_several_tables(tmp_path: Path) -> None:
    points = read(_file(tmp_path, NEW + OLD))
    assert [(p.collective, p.num_ranks) for p in points] == [
        ("all_gather", 2),
        ("all_gather", 2),
        ("all_reduce", 4),
    ]


def test_machines_are_counted_where_each_rank_names_its_own(tmp_path: Path) -> None:
    two = NEW.replace("2989376 on        lab", "2989376 on     lab-2")
    assert {p.num_hosts for p in read(_file(tmp_path, two))} == {2}
    unsaid = NEW.replace("2989376 on        lab device", "2989376")
    assert {(p.num_ranks, p.num_hosts) for p in read(_file(tmp_path, unsaid))} == {(2, None)}


def test_without_redop_root_or_hash_behind_a_launcher(tmp_path: Path) -> None:
    text = """
[1,0]<stdout>:       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
[1,0]<stdout>:        32             1   float    34.27    0.50    0.44    N/A    33.57    0.50    0.43    N/A
"""  # noqa: E501
    path = _file(tmp_path, text)
    assert read(path, "alltoall") == (ReferencePoint("all_to_all", 32, 0.44, None),)
    with pytest.raises(UsageError, match=r"log\.txt: line 3: .*which collective"):
        read(path)
    with pytest.raises(UsageError, match="unknown collective 'hypercube'"):
        read(path, "hypercube")


def test_what_the_log_says_stands_above_what_the_caller_says(tmp_path: Path) -> None:
    assert {p.collective for p in read(_file(tmp_path, NEW), "broadcast")} == {"all_gather"}


def test_other_tools_in_the_log_do_not_rename_the_table(tmp_path: Path) -> None:
    text = NEW.replace("# Using devices", "running ib_write_perf first\n# Using devices")
    assert {p.collective for p in read(_file(tmp_path, text))} == {"all_gather"}


def test_a_test_that_is_no_collective_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which collective"):
        read(_file(tmp_path, NEW.replace("all_gather_perf_mpi", "hypercube_perf")))


def test_wrong_values_are_no_reference(tmp_path: Path) -> None:
    text = NEW.replace("0.24       0", "0.24       3")
    with pytest.raises(UsageError, match=r"line 14: .*wrong values"):
        read(_file(tmp_path, text))


def test_numbers_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="busbw is nan"):
        read(_file(tmp_path, NEW.replace("    0.24 ", "     nan ")))
    with pytest.raises(UsageError, match="line 14: busbw is not a number"):
        read(_file(tmp_path, NEW.replace("    0.24 ", "    0,24 ")))


def test_no_table_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="absent"):
        read(tmp_path / "absent")
    with pytest.raises(EmptyInputError):
        read(_file(tmp_path, " \n"))
    with pytest.raises(NotATraceError, match="no table"):
        read(_file(tmp_path, '{"config": {"collective": "all_reduce"}}'))
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path)
