"""Compares everything a case expects with what reading and measuring give.

``failures`` returns sentences, one for each expectation that does not hold. A key
that it does not know is a failure too: nothing in a case is skipped.
"""

from __future__ import annotations

import gzip
import json
import math
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.analyzers.collectives import bandwidth
from diagnose.analyzers.ranks import rank_waits
from diagnose.contention import contention_kernels
from diagnose.errors import InputError
from diagnose.readers import read
from diagnose.schema import NO_ROW, Call
from diagnose.timeline import overlap
from diagnose.trace import Table, Trace
from tests.cases import findings, report_page, words

Failures = Iterator[str]


class Run:
    """What one invocation gave: a trace or an error, and the measures of the trace."""

    def __init__(self, files: list[Path], tolerance_us: float) -> None:
        self.files, self.tolerance_us = files, tolerance_us
        self.trace: Trace | None = None
        self.error: InputError | None = None
        try:
            self.trace = read(files)
        except InputError as error:
            self.error = error

    @property
    def load(self) -> str:
        if self.trace is None:
            return "error"
        return "ok" if all(source.complete for source in self.trace.sources) else "partial"

    @property
    def note_codes(self) -> set[str]:
        return {note.code for note in self.trace.notes} if self.trace else set()


def make_files(folder: Path, names: list[str], target: Path, suffix: str = "") -> list[Path]:
    """The files of a run. "repeat.py 1000 OUT" is produced with that script first."""
    files = []
    for name in names:
        if " " not in name:
            files.append(folder / name)
            continue
        script, copies, _ = name.split(" ")
        out = target / f"trace.json{suffix}"
        subprocess.run([sys.executable, str(folder / script), copies, str(out)], check=True)
        files.append(out)
    return files


def failures(run: Run, expect: dict[str, Any]) -> Failures:
    """What does not hold of one ``expect`` of a case."""
    common = {key: value for key, value in expect.items() if key != "any_of"}
    choices = [common | choice for choice in expect.get("any_of", [{}])]
    for choice in choices:
        if {"must_warn"} <= common.keys() & choice.keys():
            choice["must_warn"] = sorted({*common["must_warn"], *choice["must_warn"]})
    outcomes = [list(_failures_of(run, choice)) for choice in choices]
    if [] not in outcomes:
        yield from min(outcomes, key=len)


def _failures_of(run: Run, expect: dict[str, Any]) -> Failures:
    if "load" in expect and run.load != expect["load"]:
        yield f"load: {run.load}, expected {expect['load']} ({run.error})"
        return
    if run.trace is None:
        yield from _error(run, expect)
        return
    yield from _false_alarms(run, expect)
    for key, value in expect.items():
        if key == "load":
            continue
        check = _CHECKS.get(key)
        if check is None:
            yield f"{key}: the runner does not know this key"
        else:
            yield from check(run, run.trace, value)


def _error(run: Run, expect: dict[str, Any]) -> Failures:
    unknown = expect.keys() - {"load", "error"}
    if unknown:
        yield f"{sorted(unknown)} cannot be judged, nothing was read: {run.error}"
    if "error" in expect:
        wanted = words.ERRORS.get(expect["error"])
        if wanted is None or type(run.error) is not wanted or run.error.code != expect["error"]:
            yield f"error: {run.error!r}, expected {expect['error']}"
        elif not any(file.name in run.error.message for file in run.files):
            yield f"error: no file is named in {run.error.message!r}"
        elif not run.error.hint:
            yield f"error: {run.error.message!r} has no hint"


def _false_alarms(run: Run, expect: dict[str, Any]) -> Failures:
    asked = {words.NOTES[word] for word in expect.get("must_warn", []) if word in words.NOTES}
    alarms = {words.NOTES[word] for word in words.FALSE_ALARMS}
    for code in sorted(run.note_codes & alarms - asked):
        yield f"note {code!r}: the case has no such damage"


def _must_warn(run: Run, trace: Trace, value: list[str]) -> Failures:
    for word in value:
        if word not in words.NOTES:
            yield f"must_warn: unknown word {word!r}"
        elif words.NOTES[word] not in run.note_codes:
            yield f"must_warn: no note {word!r}, only {sorted(run.note_codes)}"
    for note in trace.notes:
        if not note.sentence or note.count < 1:
            yield f"note {note.code!r} says nothing: {note}"


def _same(run: Run, name: str, found: float | None, wanted: float | None) -> Failures:
    """``found`` is in microseconds, percent or a count; None means absent."""
    if found is None or wanted is None:
        if found is not wanted:
            yield f"{name}: {found}, expected {wanted}"
        return
    tolerance = run.tolerance_us if name.endswith("_us") else 0.01 if name.endswith("_pct") else 0
    # Both sides are decimal fractions as floats: allow for their last bits, no more.
    if abs(found - wanted) > tolerance + 1e-12 * abs(wanted):
        yield f"{name}: {found}, expected {wanted}"


def _value(table: Table, row: int, name: str) -> float | None:
    column = words.METRICS[name]
    if not table.known(column)[row]:
        return None
    value = table[column][row].item()
    return value / 1000 if column.endswith("_ns") else value


def _metrics(run: Run, table: Table, row: int, expected: dict[str, Any], label: str) -> Failures:
    for name, wanted in expected.items():
        if name not in words.METRICS:
            yield f"{label}: the runner does not know {name!r}"
            continue
        for failure in _same(run, name, _value(table, row, name), wanted):
            yield f"{label}: {failure}"


def _measured(trace: Trace, by: Any = "rank") -> Table:
    table = overlap(trace, by=by)
    assert isinstance(table, Table), table
    return table


def _gpu_key(table: Table, row: int) -> tuple[int | None, int]:
    known = table.known("rank")[row]
    return (int(table["rank"][row]) if known else None, int(table["device"][row]))


def _gpus(run: Run, trace: Trace, value: list[dict[str, Any]]) -> Failures:
    table = _measured(trace)
    rows: dict[tuple[int | None, int], list[int]] = {}
    for row in range(len(table)):
        rows.setdefault(_gpu_key(table, row), []).append(row)
    wanted = [(gpu["rank"], gpu["device"]) for gpu in value]
    found = [key for key, same in rows.items() for _ in same]
    if sorted(map(str, wanted)) != sorted(map(str, found)):
        yield f"gpus: {found}, expected {wanted}"
        return
    for gpu in value:
        metrics = {k: v for k, v in gpu.items() if k not in ("rank", "device")}
        key = (gpu["rank"], gpu["device"])
        yield from _metrics(run, table, rows[key].pop(0), metrics, f"gpu {key}")


def _totals(run: Run, trace: Trace, value: dict[str, Any]) -> Failures:
    table = _measured(trace)
    for name, wanted in value.items():
        column = words.METRICS[name]
        found: float | None
        if name == "overlap_pct":
            whole = table["communication_ns"].sum()
            found = float(100 * table["overlapped_ns"].sum() / whole) if whole else None
        elif name in ("window_us", "idle_us"):
            found = float(table[column].sum()) / 1000 if len(table) else None
        else:
            found = float(table[column].sum()) / 1000
        yield from _same(run, name, found, wanted)


def _step_names(run: Run, trace: Trace, value: list[str]) -> Failures:
    for source in np.unique(trace.steps["source"]).tolist() or [None]:
        own = trace.steps.take(trace.steps["source"] == source)
        if own.texts("name") != value:
            yield f"step_names of source {source}: {own.texts('name')}, expected {value}"


def _steps(run: Run, trace: Trace, value: int) -> Failures:
    marks = np.bincount(trace.steps["source"], minlength=len(trace.sources)).tolist()
    if marks != [value] * len(trace.sources):
        yield f"steps: {marks}, expected {value} in each"


def _per_step(run: Run, trace: Trace, value: list[dict[str, Any]]) -> Failures:
    table = _measured(trace, "step")
    names = trace.steps.texts("name")
    for wanted in value:
        where = {key: wanted[key] for key in ("rank", "device") if key in wanted}
        rows = [
            row
            for row, step in enumerate(table["step_row"].tolist())
            if (None if step == NO_ROW else names[step]) == wanted["step"]
            and where.items()
            <= dict(zip(("rank", "device"), _gpu_key(table, row), strict=True)).items()
        ]
        if not rows:
            yield f"per_step: no row for {wanted['step']!r}"
        metrics = {k: v for k, v in wanted.items() if k not in ("step", "rank", "device")}
        for row in rows:
            yield from _metrics(run, table, row, metrics, f"step {wanted['step']}")


def _gpu_event_count(run: Run, trace: Trace, value: int) -> Failures:
    yield from _same(run, "gpu_event_count", len(trace.gpu_ops), value)


def _work_event_count(run: Run, trace: Trace, value: int) -> Failures:
    """All events of the file but those that only name processes and threads."""
    naming = 0
    for file in run.files:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            naming += sum(b'"ph": "M"' in line for line in lines)
    found = sum(source.num_events for source in trace.sources) - naming
    yield from _same(run, "work_event_count", found, value)


def _dropped(run: Run, trace: Trace, value: int) -> Failures:
    found = sum(note.count for note in trace.notes if note.code in words.LEFT_OUT)
    yield from _same(run, "dropped_gpu_events", found, value)


def _classification(run: Run, trace: Trace, value: list[dict[str, str]]) -> Failures:
    for wanted in value:
        own = trace.gpu_ops["name"] == trace.strings.code(wanted["name"])
        found = np.unique(trace.gpu_ops["activity"][own]).tolist()
        if found != [words.CLASSES[wanted["class"]]]:
            yield f"classification of {wanted['name'][:60]!r}: {found}, expected {wanted['class']}"


def _collectives(run: Run, trace: Trace, value: list[dict[str, Any]]) -> Failures:
    table = bandwidth(trace)
    assert isinstance(table, Table), table
    ordered = np.argsort(table["start_ns"], kind="stable").tolist()
    for place, wanted in enumerate(value):
        keys = wanted.keys() - {"label", "order"}
        if "seq" in keys:
            yield from _across_ranks(run, trace, wanted)
            continue
        row = ordered[wanted.get("order", place)]
        for key in sorted(keys):
            yield from _collective(run, trace, table, row, wanted, key)


def _collective(
    run: Run, trace: Trace, table: Table, row: int, wanted: dict[str, Any], key: str
) -> Failures:
    value, label = wanted[key], f"collective {wanted.get('label', row)}"
    found: Any
    if key in ("collective", "name"):
        found = table.texts("collective")[row] if value is not None else table.texts("name")[row]
        if value is not None and value not in words.COLLECTIVES:
            yield f"{label}: {value!r} is missing in words.COLLECTIVES"
            return
        value = None if value is None else words.COLLECTIVES[value]
        if found != value:
            yield f"{label}: {found!r}, expected {value!r}"
    elif key in ("bytes", "group_size"):
        source = trace.collectives if key == "group_size" else table
        if key == "group_size":
            row = int(np.flatnonzero(source["gpu_op_row"] == table["gpu_op_row"][row])[0])
        found = int(source[key][row]) if source.known(key)[row] else None
        if found != value:
            yield f"{label}: {key} {found}, expected {value}"
    elif key == "duration_us":
        yield from _same(run, key, table["duration_ns"][row].item() / 1000, value)
    elif key in words.BANDWIDTHS:
        found = float(table[words.BANDWIDTHS[key]][row])
        same = math.isnan(found) if value is None else math.isclose(found, value, rel_tol=1e-9)
        if not same:
            yield f"{label}: {key} {found}, expected {value}"
    else:
        yield f"{label}: the runner does not know {key!r}"


def _across_ranks(run: Run, trace: Trace, wanted: dict[str, Any]) -> Failures:
    """One collective on all ranks; ``seq`` counts them in the order of their arrivals."""
    waits = rank_waits(trace)
    assert isinstance(waits, Table), waits
    first = {match: waits["arrival_ns"][waits["match"] == match].min() for match in waits["match"]}
    rows = waits.take(waits["match"] == sorted(first, key=first.__getitem__)[wanted["seq"]])
    label, ranks = f"collective {wanted['seq']}", rows["rank"].tolist()
    found: dict[str, Any] = {
        "seq": wanted["seq"],
        "last_to_arrive": dict(zip(rows["is_last"].tolist(), ranks, strict=True)).get(True),
        "transfer_us": rows["transfer_ns"].max().item() / 1000,
        "wait_us": {str(r): w / 1000 for r, w in zip(ranks, rows["wait_ns"].tolist(), strict=True)},
    }
    for key, value in wanted.items():
        if key not in found:
            yield f"{label}: the runner does not know {key!r}"
        elif found[key] != value:
            yield f"{label}: {key} {found[key]}, expected {value}"


def _by_file(trace: Trace, what: str) -> dict[str, Any]:
    return {Path(source.path).name: getattr(source, what) for source in trace.sources}


def _rank_of_file(run: Run, trace: Trace, value: dict[str, int | None]) -> Failures:
    if _by_file(trace, "rank") != value:
        yield f"rank_of_file: {_by_file(trace, 'rank')}, expected {value}"


def _rank_inferred_from_name(run: Run, trace: Trace, value: list[str]) -> Failures:
    found = [name for name, how in _by_file(trace, "rank_origin").items() if how == "file name"]
    if found != value:
        yield f"rank_inferred_from_name: {found}, expected {value}"


def _ranks(run: Run, trace: Trace, value: list[int]) -> Failures:
    if [source.rank for source in trace.sources] != value:
        yield f"ranks: {[source.rank for source in trace.sources]}, expected {value}"


def _traces_kept(run: Run, trace: Trace, value: int) -> Failures:
    yield from _same(run, "traces_kept", len(trace.sources), value)


def _launch_calls(run: Run, trace: Trace, value: int) -> Failures:
    launching = np.isin(trace.launches["call"], [Call.LAUNCH, Call.GRAPH_LAUNCH])
    yield from _same(run, "launch_calls", int(launching.sum()), value)


def _kernel_time(run: Run, trace: Trace, value: dict[str, float]) -> Failures:
    for name, wanted in value.items():
        own = trace.gpu_ops.take(trace.gpu_ops["name"] == trace.strings.code(name))
        found = int((own["end_ns"] - own["start_ns"]).sum()) / 1000
        yield from _same(run, f"{name}_us", found, wanted)


def _contention(run: Run, trace: Trace, value: list[dict[str, Any]]) -> Failures:
    """One entry for each kernel that has a slowdown; none where nothing can be compared."""
    table = contention_kernels(trace)
    if not isinstance(table, Table):
        if value:
            yield f"contention: {table.because}, expected {len(value)} kernels"
        return
    texts = {name: table.texts(name) for name in ("name", "launch_shape", "shapes", "family")}
    left = set(np.flatnonzero(table.known("slowdown")).tolist())
    for wanted in value:
        label = {"name": wanted["kernel"]} | {k: wanted[k] for k in texts.keys() & wanted.keys()}
        where = {key: wanted[key] for key in ("rank", "device") if key in wanted}
        keys = {
            row: dict(zip(("rank", "device"), _gpu_key(table, row), strict=True)) for row in left
        }
        rows = [
            row
            for row in sorted(left)
            if where.items() <= keys[row].items()
            and all(texts[key][row] == text for key, text in label.items())
        ]
        if not rows:
            yield f"contention: no kernel {label} {where} with a slowdown"
            continue
        left.discard(rows[0])
        for name in wanted.keys() - {"kernel", *texts, *where}:
            if name not in words.CONTENTION:
                yield f"contention: the runner does not know {name!r}"
                continue
            found = float(table[words.CONTENTION[name]][rows[0]])
            if name.endswith("_us"):
                yield from _same(run, name, found / 1000, wanted[name])
            elif not math.isclose(found, wanted[name], rel_tol=1e-6):
                yield f"contention of {label}: {name} {found}, expected {wanted[name]}"
    for row in sorted(left):
        yield f"contention: a slowdown of {texts['name'][row]!r} that the case does not have"


def _report(run: Run, trace: Trace, value: dict[str, Any]) -> Failures:
    return report_page.failures(trace, dict(value))


def _findings(run: Run, trace: Trace, value: dict[str, Any]) -> Failures:
    return findings.failures(trace, value)


_CHECKS = {
    "must_warn": _must_warn,
    "gpus": _gpus,
    "totals": _totals,
    "steps": _steps,
    "step_names": _step_names,
    "per_step": _per_step,
    "gpu_event_count": _gpu_event_count,
    "work_event_count": _work_event_count,
    "dropped_gpu_events": _dropped,
    "classification": _classification,
    "collectives": _collectives,
    "rank_of_file": _rank_of_file,
    "rank_inferred_from_name": _rank_inferred_from_name,
    "ranks": _ranks,
    "traces_kept": _traces_kept,
    "launch_calls": _launch_calls,
    "kernel_time": _kernel_time,
    "contention": _contention,
    "report": _report,
    "findings": _findings,
}


def check_in_this_process(file: Path, expect: dict[str, Any], tolerance_us: float) -> str:
    """For a child process: what does not hold, and the peak memory, as JSON."""
    found = list(failures(Run([file], tolerance_us), expect))
    return json.dumps({"failures": found, "peak_bytes": _peak_bytes()})


def _peak_bytes() -> int:
    """This process's own peak: ``ru_maxrss`` also counts that of the one it was started from."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [one for one in status.read_text().splitlines() if one.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    path, expectation, tolerance = sys.argv[1:]
    sys.stdout.write(check_in_this_process(Path(path), json.loads(expectation), float(tolerance)))
