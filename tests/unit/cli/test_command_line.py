"""The command line: exit status, streams, files, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import diagnose
from diagnose import cli, engine
from diagnose.cli import _reading
from diagnose.cli._output import deliver, page_for
from diagnose.errors import InputNotFoundError, UsageError
from tests.builder import TraceBuilder

VERBS = sorted(name.replace("_", "-") for name in engine.discover("diagnose.cli", "COMMAND"))
COMMAND = [sys.executable, "-c", "from diagnose.cli import main; main()"]


@pytest.fixture
def trace_file(tmp_path):
    builder = TraceBuilder(rank=0, world_size=1).step(1, 0, 50).step(2, 50, 50).step(3, 100, 50)
    for start in (5, 55, 105):
        builder.kernel("gemm", start + 5, 30, launch=start)
        builder.collective("allreduce", start + 25, 20, launch=start + 1)
    return str(builder.write(tmp_path))


def test_the_verbs():
    reading = ["compare", "contention", "critical-path", "info", "overlap", "power", "ranks"]
    reading += ["report", "stalls", "whatif"]
    reading += ["explain", "rules"]
    reading += ["dashboard", "mcp"]
    recording = ["attach", "check-sync", "merge", "power-sweep", "run"]
    assert sorted(reading + recording) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_an_example_of_its_own_verb(verb, capsys):
    assert cli.execute([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"Examples?:\n +diagnose {verb}( |\n)", out)
    assert len(out.splitlines()) < 60


def test_help_fits_its_lines(capsys):
    assert cli.execute(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)
    assert "..." not in out.split("Commands:")[1]


def test_no_arguments_print_the_help_and_are_wrong_usage(capsys):
    assert cli.execute([]) == 2
    assert "Usage: diagnose" in capsys.readouterr().out


def test_version(capsys):
    assert cli.execute(["--version"]) == 0
    assert capsys.readouterr().out == f"diagnose {diagnose.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reprot", "x"], "reprot"),
        (["report"], "PATH"),
        (["report", "x", "--format", "xml"], "xml"),
        (["report", "x", "--nonsense"], "--nonsense"),
        (["report", "x", "--only", "cpu"], "cpu"),
        (["report", "x", "--rank", "-1"], "--rank"),
        (["overlap", "x", "--by", "layer"], "layer"),
        (["overlap", "x", "--format", "xml"], "xml"),
        (["report", "there-is-no-such-file"], "there-is-no-such-file"),
    ],
)
def test_wrong_usage_is_an_error_with_a_hint_and_status_2(arguments, said, capsys):
    assert cli.execute(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error, hint = err.strip().split("\nhint: ", 1)
    assert error.startswith("error: ")
    assert said in error
    assert hint
    assert "Traceback" not in err


def test_an_unexpected_error_asks_for_a_report_and_debug_shows_it(monkeypatch, capsys):
    def crash(*_, **__):
        raise ZeroDivisionError("ouch")

    monkeypatch.setattr(_reading, "read", crash)
    assert cli.execute(["report", "x"]) == 3
    err = capsys.readouterr().err
    assert "ZeroDivisionError: ouch" in err
    assert "report it" in err
    assert "Traceback" not in err
    for arguments in (["--debug", "report", "x"], ["report", "x", "--debug"]):
        assert cli.execute(arguments) == 3
        assert "Traceback" in capsys.readouterr().err


def test_text_of_an_error_cannot_move_the_cursor(monkeypatch, capsys):
    def refuse(*_, **__):
        raise InputNotFoundError("no \x1b[2J file", hint="look\nhere")

    monkeypatch.setattr(_reading, "read", refuse)
    assert cli.execute(["report", "x"]) == 2
    assert capsys.readouterr().err == "error: no \\x1b[2J file\nhint: look\\nhere\n"


def test_ctrl_c_is_quiet(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(_reading, "read", interrupt)
    assert cli.execute(["report", "x"]) == 130
    # Some versions of click leave the line of the ^C first.
    assert capsys.readouterr().err.strip() == "interrupted"


def test_a_signal_ends_the_process_without_a_traceback():
    script = "import os, signal\nfrom diagnose.cli import _reading, main\n"
    script += "_reading.read = lambda *_: os.kill(os.getpid(), signal.SIGINT)\nmain(['info', 'x'])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert run.returncode == 128 + signal.SIGINT
    assert run.stderr.strip() == b"interrupted"


def test_a_closed_pipe_is_no_error(trace_file):
    read_end, write_end = os.pipe()
    os.close(read_end)
    run = subprocess.run(
        [*COMMAND, "report", trace_file], stdout=write_end, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write_end)
    assert (run.returncode, run.stderr) == (0, b"")


def test_the_format_follows_the_files_name(trace_file, tmp_path):
    for name, begins in (("r.json", "{"), ("r.md", "**"), ("r.txt", "\u2026")):
        target = tmp_path / name
        assert cli.execute(["report", trace_file, "-o", str(target)]) == 0
        assert target.read_text(encoding="utf-8").startswith(begins)
    target = tmp_path / "r.out"
    assert cli.execute(["report", trace_file, "--format", "json", "-o", str(target)]) == 0
    assert json.loads(target.read_text())["schema_version"] == 1


def test_nothing_is_printed_beside_a_file(trace_file, tmp_path, capsys):
    assert cli.execute(["report", trace_file, "-o", str(tmp_path / "r.txt")]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_output_may_not_be_an_input(trace_file, tmp_path, capsys):
    link = tmp_path / "link.json"
    link.symlink_to(trace_file)
    before = Path(trace_file).read_bytes()
    for verb in ("report", "overlap"):
        for target in (trace_file, str(link)):
            assert cli.execute([verb, trace_file, "-o", target]) == 2
            assert "one of the inputs" in capsys.readouterr().err
    assert Path(trace_file).read_bytes() == before


@pytest.mark.parametrize(
    ("verb", "name", "begins"),
    [
        ("overlap", "o.csv", "rank,"),
        ("overlap", "o.json", "{"),
        ("overlap", "o.txt", ""),
        ("report", "r.json", "{"),
        ("report", "r.md", "**"),
    ],
)
def test_the_name_of_the_output_decides_the_format(trace_file, tmp_path, verb, name, begins):
    target = tmp_path / name
    assert cli.execute([verb, trace_file, "-o", str(target)]) == 0
    assert target.read_text().startswith(begins)


@pytest.mark.parametrize(
    "arguments", [("overlap", "o.md"), ("report", "r.xml"), ("report", "r.csv")]
)
def test_a_suffix_that_promises_another_format_is_refused(trace_file, tmp_path, capsys, arguments):
    verb, name = arguments
    assert cli.execute([verb, trace_file, "-o", str(tmp_path / name)]) == 2
    assert name in capsys.readouterr().err
    assert not (tmp_path / name).exists()
    assert cli.execute([verb, trace_file, "-o", str(tmp_path / name), "--format", "text"]) == 0


@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [(">/dev/full", 2, "cannot write to standard output"), (">&-", 2, "closed"), ("2>&-", 0, "")],
)
def test_standard_streams_that_are_full_or_closed(trace_file, redirected, status, said):
    command = f'exec "{sys.executable}" -m diagnose report "{trace_file}" {redirected}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


NCCL_TESTS = """\
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on node device  0 [0x00] NVIDIA H200
#  Rank  1 Group  0 Pid 2 on node device  1 [0x00] NVIDIA H200
#  size  count  type  redop  root  time  algbw  busbw  #wrong
   1024    256  float   sum    -1  10.0   0.10   0.10       0
   4096   1024  float   sum    -1  10.0   0.41   0.40       0
"""


def test_nccl_tests_stand_beside_the_collectives(trace_file, tmp_path, capsys):
    log = tmp_path / "nccl.log"
    log.write_text(NCCL_TESTS)
    arguments = ["report", trace_file, "--nccl-tests", str(log)]
    assert cli.execute([*arguments, "--format", "json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["collectives"]
    # 1024 elements of bfloat16 on two ranks: halfway, in log size, between the two points.
    assert [row["bytes"] for row in sizes] == [2048]
    assert sizes[0]["reference_busbw_gb_per_s"] == pytest.approx(0.25)
    # In 20 us: 2048 / 20 000 bytes a nanosecond; two ranks have the factor 1.
    assert sizes[0]["best_busbw_gb_per_s"] == pytest.approx(0.1024)
    assert cli.execute(arguments) == 0
    assert "nccl-tests" in capsys.readouterr().out
    assert cli.execute(["report", trace_file, "--nccl-tests", str(tmp_path / "no.log")]) == 2
    assert "no.log" in capsys.readouterr().err


def test_overlap_as_csv(trace_file, capsys):
    assert cli.execute(["overlap", trace_file, "--by", "step", "--format", "csv"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    names = header.split(",")
    cells = [dict(zip(names, row.split(","), strict=True)) for row in rows]
    assert [cell["step"] for cell in cells] == [
        "ProfilerStep#1",
        "ProfilerStep#2",
        "ProfilerStep#3",
    ]
    # Each step: gemm [10,40), all-reduce [30,50).
    assert {cell["exposed_comm_us"] for cell in cells} == {"10"}
    assert {cell["overlap_pct"] for cell in cells} == {"50.0"}
    assert [cell["step_us"] for cell in cells] == ["", "50", "50"]


def test_overlap_by_step_without_marks_says_what_to_record(tmp_path, capsys):
    path = TraceBuilder(rank=0).kernel("gemm", 0, 10, launch=0).write(tmp_path)
    assert cli.execute(["overlap", str(path), "--by", "step"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "step" in err
    assert "hint: " in err


def test_info_says_where_the_rank_was_learnt(trace_file, capsys):
    assert cli.execute(["info", trace_file]) == 0
    out = capsys.readouterr().out
    assert "metadata" in out
    assert "Trace quality" in out
    assert cli.execute(["info", trace_file, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"][0]["rank_origin"] == "metadata"
    assert document["inputs"][0]["tables"]["gpu_ops"] == 6


def test_a_damaged_rank_does_not_stop_the_others(trace_file, tmp_path, capsys):
    broken = tmp_path / "rank00001.trace.json"
    broken.write_text("not a trace")
    assert cli.execute(["report", trace_file, str(broken), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [gpu["rank"] for gpu in document["gpus"]] == [0]
    assert any(n["severity"] == "error" and broken.name in n["sentence"] for n in document["notes"])
    assert document["quality"]["verdict"] == "usable with care"


def test_fast_reads_no_operators_and_lists_what_it_does_not_check(trace_file, capsys):
    assert cli.execute(["report", trace_file, "--fast", "--format", "json"]) == 0
    fast = json.loads(capsys.readouterr().out)
    assert cli.execute(["report", trace_file, "--format", "json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert fast["gpus"] == whole["gpus"]
    reasons = {row["rule"]: row for row in fast["not_checked"]}
    for rule in ("host-sync", "compute-slowed-by-overlap"):
        assert "operators" in reasons[rule]["because"] or "shapes" in reasons[rule]["because"]
        assert "--fast" in reasons[rule]["remedy"]
    whole_reasons = {row["rule"]: row for row in whole["not_checked"]}
    assert "--fast" not in str(whole_reasons.get("host-sync"))


def test_fast_and_only_exclude_each_other(trace_file, capsys):
    assert cli.execute(["report", trace_file, "--fast", "--only", "gpu"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_only_gpu_says_why_there_are_no_steps(trace_file, capsys):
    assert cli.execute(["report", trace_file, "--only", "gpu"]) == 0
    out = capsys.readouterr().out
    assert "steps: not available" in out
    assert "--only gpu" in out


class TestDelivery:
    def test_a_file_is_replaced_in_one_step_and_leaves_no_part(self, tmp_path):
        target = tmp_path / "report.txt"
        target.write_text("old")
        deliver("new \u2588", target)
        assert target.read_text(encoding="utf-8") == "new \u2588"
        assert list(tmp_path.iterdir()) == [target]

    def test_what_fails_leaves_the_old_file(self, tmp_path):
        target = tmp_path / "report.txt"
        target.write_text("old")
        with pytest.raises(UnicodeEncodeError):
            deliver("half \ud800", target)
        assert target.read_text() == "old"
        assert list(tmp_path.iterdir()) == [target]

    def test_a_missing_folder_is_wrong_usage(self, tmp_path):
        with pytest.raises(UsageError, match="cannot write"):
            deliver("x", tmp_path / "no" / "report.txt")

    def test_a_folder_is_wrong_usage(self, tmp_path):
        with pytest.raises(UsageError, match="cannot write"):
            deliver("x", tmp_path)

    def test_a_device_is_written_to_and_not_replaced(self):
        null = Path(os.devnull)
        before = null.stat().st_ino
        deliver("x", null)
        assert null.stat().st_ino == before

    def test_a_file_gets_a_fixed_page(self, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "70")
        page = page_for(tmp_path / "x")
        assert (page.width, page.color, page.unicode) == (100, False, True)

    def test_a_pipe_gets_no_colour_unless_forced(self, monkeypatch):
        for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm")
        assert (page_for(None).width, page_for(None).color) == (100, False)
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert page_for(None).color
        monkeypatch.setenv("NO_COLOR", "1")
        assert not page_for(None).color
        monkeypatch.setenv("COLUMNS", "80")
        assert page_for(None).width == 80


class TestProgress:
    def test_a_pipe_sees_no_bar(self, capsys):
        with _reading.Progress(["x"]) as progress:
            progress._started -= 60
            progress._drawn -= 60
            progress(10)
        assert capsys.readouterr() == ("", "")

    def test_a_quick_load_shows_no_bar_and_a_slow_one_does(self, tmp_path):
        path = tmp_path / "x.json"
        path.write_bytes(b" " * 1000)
        script = (
            "import sys\nfrom diagnose.cli import _reading\n"
            "with _reading.Progress([sys.argv[1]]) as progress:\n"
            "    progress._started -= float(sys.argv[2]); progress._drawn -= 1\n"
            "    progress(500)\n"
        )
        shown = []
        for waited in ("0", "60"):
            ours, theirs = pty.openpty()
            run = [sys.executable, "-c", script, str(path), waited]
            environment = {**os.environ, "TERM": "xterm"}
            subprocess.run(run, stderr=theirs, check=True, timeout=60, env=environment)
            os.set_blocking(ours, False)
            time.sleep(0.05)
            try:
                shown.append(os.read(ours, 65536))
            except BlockingIOError:
                shown.append(b"")
            os.close(ours)
            os.close(theirs)
        assert shown[0] == b""
        assert b"reading" in shown[1]

    def test_the_total_is_what_lies_on_disk(self, tmp_path):
        (tmp_path / "a.json").write_bytes(b"x" * 10)
        (tmp_path / "b.json.gz").write_bytes(b"x" * 5)
        (tmp_path / "README.md").write_bytes(b"x" * 99)
        assert _reading.stored_bytes([str(tmp_path)]) == 15
        assert _reading.stored_bytes([str(tmp_path / "a.json"), "s3://bucket/x"]) is None


def test_a_crash_below_python_leaves_a_stack():
    code = """
import ctypes
from diagnose import cli
cli.execute = lambda _: ctypes.string_at(0)
cli.main(["info"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode < 0
    assert "Segmentation fault" in done.stderr
    assert "in main" in done.stderr
