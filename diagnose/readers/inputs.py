"""What a person gave, as a list of trace files with all that belongs to each.

Given may be files, folders, globs, recording folders and fsspec URLs. A folder
stands for the traces directly in it; if there are none, for those in its
subfolders. Files named outright have to be traces; files found in a folder or by
a glob may turn out to be none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from diagnose import manifest as manifests
from diagnose.errors import InputError, InputNotFoundError, UsageError
from diagnose.manifest import Manifest
from diagnose.readers import files
from diagnose.readers.assemble import ranks
from diagnose.trace import HostIntervals, Note, Observer, Severity

Given = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MAX_DEPTH = 4
_MAX_FOLDERS = 10_000
_ENVIRONMENT = re.compile(r"(?:^|.*[._-])env\.json", re.IGNORECASE)
_TELEMETRY = re.compile(r"(?:^|.*[._-])telemetry\.csv", re.IGNORECASE)
_EXECUTION_TRACE = re.compile(r"(?:^|.*[._-])execution_trace\.json(?:\.gz)?", re.IGNORECASE)
_TRACE_SUFFIX = re.compile(r"(?:\.(?:pt|trace|chrome_trace|json|gz|zip))+", re.IGNORECASE)
_MAYBE_TRACE = re.compile(r".*\.(?:json|gz|zip|trace)|[^.]+", re.IGNORECASE)
# Names of things that live beside traces; by suffix they could be traces.
_NEVER_TRACE = re.compile(
    r"makefile|dockerfile|license|readme|expected\.json|package(?:-lock)?\.json|.*\.tar\.gz|.*\.tgz",
    re.IGNORECASE,
)


_KNOWN_OF_A_FILE = (
    *("manifest_rank", "world_size", "environment", "telemetry", "execution_trace"),
    *("host_intervals", "gpu_uuid"),
)
# A file that calls itself so was meant to be a trace, wherever it was found.
_MEANT = re.compile(r"trace|(?<![A-Za-z0-9])rank[_-]?\d", re.IGNORECASE)


@dataclass
class TraceFile:
    """A file to read. ``found``: not named outright, so it may turn out to be no trace."""

    path: str
    found: bool = False
    manifest_rank: int | None = None
    world_size: int | None = None
    environment: str | None = None
    telemetry: str | None = None
    execution_trace: str | None = None
    host_intervals: HostIntervals | None = None
    gpu_uuid: str | None = None
    """As the manifest names the rank's GPU."""


@dataclass
class Inputs:
    """Traces in the order given, and what had to be said about the rest."""

    traces: list[TraceFile] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    environments: list[str] = field(default_factory=list)
    """Environment files given that belong to no trace by name."""
    telemetries: list[str] = field(default_factory=list)
    execution_traces: list[str] = field(default_factory=list)
    recordings: list[Manifest] = field(default_factory=list)
    """The manifests that were read."""

    @property
    def observer(self) -> Observer | None:
        """What recording cost; None unless all came from one recording that says it."""
        if len(self.recordings) != 1:
            return None
        [only] = self.recordings
        # The intervals themselves, where they are there: an older recorder took other medians.
        intervals = manifests.observer_of(rank.step_times for rank in only.ranks)
        said = intervals or only.observer
        return None if said is None else Observer(**vars(said))

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks that no recording given has."""
        sets = [set(manifest.missing_ranks) for manifest in self.recordings]
        return tuple(sorted(set.intersection(*sets))) if sets else ()


def find(given: Given) -> Inputs:
    """Resolve what was given. Raises InputNotFoundError, InputError or UsageError."""
    paths = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not paths:
        raise UsageError("no input was given", hint="give a trace file, a folder or a glob")
    result = Inputs()
    for path in paths:
        text = os.fspath(path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise UsageError(
                f"{path!r} is not a path", hint="give a trace file, a folder or a glob"
            )
        _add(result, text)
    _drop_repeated(result)
    if not result.traces:
        raise InputNotFoundError(
            f"{_listed(map(str, paths))}: environment, telemetry or execution trace alone, no "
            "trace of the profiler",
            hint="give the trace that they belong to as well",
        )
    _attach(result)
    return result


def _add(result: Inputs, path: str) -> None:
    if files.is_folder(path):
        _add_folder(result, path)
    elif files.is_file(path) or files.is_special(path):
        _add_file(result, path, found=False)
    else:
        matched = files.matches(path)
        if not matched:
            raise InputNotFoundError(f"{path}: no such file or folder", hint="check the path")
        before = len(result.traces)
        for match in matched:
            if files.is_folder(match):
                _add_folder(result, match)
            elif files.is_special(match):
                result.notes.append(_not_a_file(match))
            elif could_be_trace(match) or _is_companion(match):
                _add_file(result, match, found=True)
        if len(result.traces) == before and not any(map(_is_companion, matched)):
            raise InputNotFoundError(
                f"{path}: none of the {len(matched)} matches looks like a trace",
                hint="traces end in .json, .json.gz or .zip; name one outright to read it anyway",
            )


def _add_file(result: Inputs, path: str, *, found: bool) -> None:
    folder, name = files.split(path)
    if _ENVIRONMENT.fullmatch(name):
        result.environments.append(path)
    elif _TELEMETRY.fullmatch(name):
        result.telemetries.append(path)
    elif _EXECUTION_TRACE.fullmatch(name):
        result.execution_traces.append(path)
    elif name == manifests.FILE_NAME:
        _add_folder(result, folder or ".")
    else:
        result.traces.append(TraceFile(path, found))


def _add_folder(result: Inputs, folder: str) -> None:
    names, subfolders = files.entries(folder)
    if manifests.FILE_NAME in names and _add_recording(result, folder):
        return
    special = {name for name in names if files.is_special(files.join(folder, name))}
    result.notes += [_not_a_file(files.join(folder, name)) for name in sorted(special)]
    traces = [name for name in names if could_be_trace(name) and name not in special]
    for name in traces:
        result.traces.append(TraceFile(files.join(folder, name), found=True))
    if traces:
        return
    nested = _nested(result, folder, subfolders)
    recordings = [path for path, is_recording in nested if is_recording]
    if len(recordings) > 1:
        raise UsageError(
            f"{folder}: holds {len(recordings)} recordings ({_listed(recordings)}), which are not "
            "one job",
            hint="give one of them",
        )
    if not nested:
        if manifests.FILE_NAME in names:
            raise InputNotFoundError(
                result.notes[-1].sentence, hint="copy the whole recording, or give a trace file"
            )
        raise InputNotFoundError(
            f"{folder}: no trace in this folder or below",
            hint="traces end in .json, .json.gz or .zip; name the file outright if it has another "
            "name",
        )
    for path, _ in nested:
        _add_folder(result, path)


def _not_a_file(path: str) -> Note:
    sentence = (
        f"{path}: a pipe or device, not a file, and left out; figures over ranks are without it: "
        "name it outright to read it"
    )
    return Note("not-a-file", "warning", sentence)


def _nested(result: Inputs, folder: str, subfolders: list[str]) -> list[tuple[str, bool]]:
    """Folders below that hold traces, and whether each is a recording; by path."""
    found: list[tuple[str, bool]] = []
    waiting = [(files.join(folder, name), 1) for name in subfolders]
    for visited, (path, depth) in enumerate(waiting):
        if visited == _MAX_FOLDERS:
            raise InputNotFoundError(
                f"{folder}: no end of folders, gave up after {_MAX_FOLDERS}",
                hint="give the folder that holds the traces",
            )
        try:
            names, deeper = files.entries(path)
        except InputError as error:
            sentence = f"{error.message}; traces in it, if any, are left out"
            result.notes.append(Note("folder-unreadable", "warning", sentence))
            continue
        is_recording = manifests.FILE_NAME in names
        if is_recording or any(map(could_be_trace, names)):
            found.append((path, is_recording))
        elif depth < _MAX_DEPTH:
            waiting += [(files.join(path, name), depth + 1) for name in deeper]
    return sorted(found)


def _add_recording(result: Inputs, folder: str) -> bool:
    """The traces a manifest names; False (with a note) if it cannot be used."""
    path = files.join(folder, manifests.FILE_NAME)
    data, problem = files.read_bounded(path, manifests.MAX_BYTES)
    try:
        if problem is not None:
            raise InputError(f"{path}: {problem}")
        manifest = manifests.parse(data, path)
    except InputError as error:
        sentence = (
            f"{error.message}; the traces that lie in the folder were read instead, so ranks rest "
            "on the traces and their names"
        )
        result.notes.append(Note("manifest-unreadable", "warning", sentence))
        return False
    return _add_ranks(result, folder, manifest)


def _add_ranks(result: Inputs, folder: str, manifest: Manifest) -> bool:
    missing: list[str] = []
    present = 0
    for rank in manifest.ranks:
        trace = files.join(folder, rank.trace)
        if not files.is_file(trace):
            missing.append(f"rank {rank.rank}: {rank.trace}")
            continue
        entry = TraceFile(trace, False, rank.rank, manifest.world_size)
        companions: list[str | None] = []
        for name in (rank.env, rank.telemetry):
            path = files.join(folder, name) if name else None
            if path is not None and not files.is_file(path):
                missing.append(f"rank {rank.rank}: {name}")
                path = None
            companions.append(path)
        entry.environment, entry.telemetry = companions
        if rank.execution_trace is not None:
            path = files.join(folder, rank.execution_trace)
            if files.is_file(path):
                entry.execution_trace = path
            else:
                missing.append(f"rank {rank.rank}: {rank.execution_trace}")
        if rank.step_times is not None:
            entry.host_intervals = HostIntervals(**vars(rank.step_times))
        entry.gpu_uuid = rank.gpu_uuid
        result.traces.append(entry)
        present += 1
    if missing:
        sentence = (
            f"{files.join(folder, manifests.FILE_NAME)}: {len(missing)} files that it names are "
            f"not there ({_listed(missing)}); figures over ranks leave these out"
        )
        result.notes.append(Note("file-missing", "warning", sentence, len(missing)))
    if present:
        result.recordings.append(manifest)
        result.notes += [Note(n.code, n.severity, n.sentence) for n in manifest.notes]
        result.notes += _unlisted(folder, manifest)
    return present > 0


def _unlisted(folder: str, manifest: Manifest) -> list[Note]:
    """Traces that lie beside those of a manifest which does not name them."""
    named = {files.identity(files.join(folder, rank.trace)) for rank in manifest.ranks}
    others = [
        name
        for name in files.entries(folder)[0]
        if could_be_trace(name)
        and meant_as_trace(name)
        and files.identity(files.join(folder, name)) not in named
    ]
    if not others:
        return []
    sentence = (
        f"{files.join(folder, manifests.FILE_NAME)}: traces beside it that it does not name: "
        f"{len(others)} ({_listed(others)}); they were left out, so figures over ranks are without "
        "them: give the files to read them"
    )
    return [Note("trace-unlisted", "warning", sentence, len(others))]


def meant_as_trace(path: str) -> bool:
    """Whether a file's name says that it is one."""
    return bool(_MEANT.search(files.split(path)[1]))


def could_be_trace(path: str) -> bool:
    """Whether a file found somewhere is worth a look, by its name alone."""
    name = files.split(path)[1]
    return (
        name != manifests.FILE_NAME
        and not name.startswith((".", "__"))
        and bool(_MAYBE_TRACE.fullmatch(name))
        and not _NEVER_TRACE.fullmatch(name)
        and not _is_companion(name)
    )


def _is_companion(path: str) -> bool:
    name = files.split(path)[1]
    return any(kind.fullmatch(name) for kind in (_ENVIRONMENT, _TELEMETRY, _EXECUTION_TRACE))


def stem(path: str) -> str:
    """The path without the endings of a trace: ``a/rank0.pt.trace.json.gz`` -> ``a/rank0``."""
    folder, name = files.split(path)
    match = re.search(_TRACE_SUFFIX.pattern + "$", name, re.IGNORECASE)
    return files.join(folder, name[: match.start()] if match and match.start() else name)


def _attach(result: Inputs) -> None:
    """Give each trace the companions of its stem, given or lying beside it.

    A single one that was given with a single trace belongs to it, whatever its name.
    """
    for kind, suffixes, left in (
        ("environment", (".env.json",), result.environments),
        ("telemetry", (".telemetry.csv",), result.telemetries),
        (
            "execution_trace",
            (".execution_trace.json", ".execution_trace.json.gz"),
            result.execution_traces,
        ),
    ):
        for trace in result.traces:
            if getattr(trace, kind) is not None:
                continue
            wanted = [stem(trace.path) + suffix for suffix in suffixes]
            same = {files.identity(path) for path in wanted}
            mine = [path for path in left if files.identity(path) in same]
            mine = mine or list(filter(files.is_file, wanted))
            if mine:
                setattr(trace, kind, mine[0])
        used = {files.identity(path) for t in result.traces if (path := getattr(t, kind))}
        left[:] = [path for path in left if files.identity(path) not in used]
        if len(result.traces) == len(left) == 1 and getattr(result.traces[0], kind) is None:
            setattr(result.traces[0], kind, left.pop())
        for path in left:
            sentence = (
                f"{path}: belongs to no trace that was given (by its name, as "
                f"rank00000{suffixes[0]} to rank00000.trace.json) and was left out"
            )
            # Without the settings or sensors that were given figures are missing.
            severity: Severity = "info" if kind == "execution_trace" else "warning"
            named = kind.replace("_", "-")
            result.notes.append(Note(f"{named}-unassigned", severity, sentence))
        left.clear()


def _drop_repeated(result: Inputs) -> None:
    """The same file given twice (by name and by its folder) is read once; what is known is kept."""
    seen: dict[str, TraceFile] = {}
    for trace in result.traces:
        first = seen.setdefault(files.identity(trace.path), trace)
        if first is not trace:
            first.found &= trace.found
            result.notes += _same_file(first, trace)
            for name in _KNOWN_OF_A_FILE:
                if getattr(first, name) is None:
                    setattr(first, name, getattr(trace, name))
    result.traces = list(seen.values())
    for kind in (result.environments, result.telemetries, result.execution_traces):
        kind[:] = list({files.identity(path): path for path in kind}.values())


def _same_file(first: TraceFile, other: TraceFile) -> list[Note]:
    """Keep of two names of a file the one that tells its rank."""
    names = first.path, other.path
    if files.split(names[0])[1] == files.split(names[1])[1]:
        return []
    if ranks.in_file_name(first.path) is None and ranks.in_file_name(other.path) is not None:
        first.path = other.path
    sentence = (
        f"{names[0]} and {names[1]} are one file (a link); it was read once, as {first.path}, so "
        "nothing is counted twice"
    )
    return [Note("same-file", "info", sentence, 2)]


def _listed(texts: Iterable[str], limit: int = 6) -> str:
    shown = list(texts)
    return ", ".join(shown[:limit]) + (", ..." if len(shown) > limit else "")
