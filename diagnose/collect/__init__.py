"""From running ranks to a recording: ``attach``.

The folder is refused or made first; nothing is asked of the job before it is there.
The manifest is written last: a folder without one is unfinished. However it ends,
the agents are let go, and what is partial is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from diagnose import __version__, manifest
from diagnose.attach.discovery.discover import RankProcess
from diagnose.attach.hosts import JobStore, Meeting
from diagnose.attach.kineto import daemon
from diagnose.attach.session import Member, Session, Wanted
from diagnose.collect import _kineto
from diagnose.collect._folder import RecordingFolder
from diagnose.collect._notes import recording_notes
from diagnose.collect._reach import Reach, Route, reach
from diagnose.collect._window import Files, Options, WindowRecorder
from diagnose.errors import AttachError, DiagnoseError, NoRanksError, RecordingError, UsageError
from diagnose.manifest import Manifest, Observer, RecordingNote, Window

__all__ = ["Options", "Recorded", "Route", "attach", "route_named"]

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Recorded:
    """A recording that is whole: ``diagnose.load(recorded.folder)`` reads it."""

    folder: Path
    manifest: Manifest

    @property
    def notes(self) -> tuple[RecordingNote, ...]:
        """What has to be said of it."""
        return self.manifest.notes

    @property
    def observer(self) -> Observer | None:
        """What recording cost the job."""
        return self.manifest.observer


def route_named(name: str) -> Route:
    """The route of this name. Raises UsageError for another."""
    try:
        return Route(name)
    except ValueError:
        known = ", ".join(route.value for route in Route)
        raise UsageError(f"there is no route {name!r}", hint=f"use one of {known}") from None


def attach(
    target: Sequence[RankProcess] | str,
    output: str | os.PathLike[str],
    *,
    steps: int = 3,
    seconds: float | None = None,
    at_step: int | None = None,
    options: Options | None = None,
    route: Route = Route.auto,
    timeout_s: float = 30.0,
    hosts: int = 1,
    store: str | None = None,
    progress: Progress = lambda _: None,
) -> Recorded:
    """Record one window of a running job into a folder that is new or empty.

    ``target``: ranks of one job on this host (``diagnose.attach.discovery.discover``), or the
    address ``HOST:PORT`` of its store, over which the ranks of all hosts are reached.
    ``seconds`` is turned into steps, the same number on every rank. ``at_step`` begins
    at a step number instead of as soon as possible, for jobs started with an agent.
    ``timeout_s`` bounds each wait for a rank. ``progress`` is called with what goes on.
    ``hosts``: so many call this at the same time, each with the ranks of its own host, and
    record the same steps, for `diagnose merge`; they meet at ``store``, the job's own.

    A rank that fails is left out, which the manifest says. Raises UsageError,
    OutputError for the folder, and AttachError if no rank could be recorded.
    """
    if steps < 1 or (seconds is not None and not 0 < seconds < 1e6) or timeout_s <= 0:
        raise UsageError(
            f"a window of {steps if seconds is None else seconds} cannot be recorded",
            hint="give --steps 1 or more, or --seconds over 0",
        )
    if not target:
        raise NoRanksError("no rank was given", hint="list them with `diagnose attach`")
    _check_meeting(target, hosts, store, route)
    wanted = Wanted(None if seconds is not None else steps, seconds, at_step)
    how = Reach(route, timeout_s, progress)
    folder = RecordingFolder.create(Path(output))
    files = Files()
    try:
        with _meeting(hosts, store, how) as meeting:
            _record(target, folder, wanted, options or Options(), how, files, meeting)
        content = _manifest(target, files, wanted)
        manifest.write(content, folder.path)
    except BaseException:
        kept = folder.clear_up()
        if kept:
            found = _rescued(target, folder, files, wanted)
            progress(
                f"{len(kept)} whole traces are kept in {folder.path}"
                + ("" if found else "; it has no manifest, which `diagnose report` can do without")
            )
        raise
    return Recorded(folder.path, content)


def _rescued(
    target: Sequence[RankProcess] | str, folder: RecordingFolder, files: Files, wanted: Wanted
) -> bool:
    """Whether the traces that are whole got a manifest after all."""
    if files.rescue is None:
        return False
    with suppress(DiagnoseError, OSError):
        files.rescue()
        manifest.write(_manifest(target, files, wanted), folder.path)
        return True
    return False


def _check_meeting(
    target: Sequence[RankProcess] | str, hosts: int, store: str | None, route: Route
) -> None:
    if hosts == 1 and store is None:
        return
    if hosts < 2 or store is None:
        raise UsageError(
            "several hosts meet at the job's store",
            hint="give both --hosts N and --store HOST:PORT (its MASTER_ADDR:MASTER_PORT)",
        )
    if isinstance(target, str) or route is Route.kineto_daemon:
        raise UsageError(
            "each host attaches to its own ranks by an agent", hint="leave --hosts out"
        )


@contextmanager
def _meeting(hosts: int, store: str | None, how: Reach) -> Iterator[Meeting | None]:
    """Where the controllers of all hosts are, once they are; None for one alone."""
    if hosts == 1 or store is None:
        yield None
        return
    with JobStore.open(store) as opened:
        meeting = opened.meeting(hosts)
        how.say(f"waiting for the other hosts, {hosts} in all")
        try:
            meeting.join(max(how.timeout_s, 60.0))
            yield meeting
        except RecordingError as error:
            meeting.leave(error.message)
            raise
        finally:
            meeting.leave()


def _record(
    target: Sequence[RankProcess] | str,
    folder: RecordingFolder,
    wanted: Wanted,
    options: Options,
    how: Reach,
    files: Files,
    meeting: Meeting | None,
) -> None:
    if isinstance(target, str):
        _record_over_store(target, folder, wanted, options, how, files)
        return
    if how.route is Route.kineto_daemon:
        _kineto.record(target, folder, wanted, options, how, files)
        return
    with Session([], timeout_s=how.timeout_s, say=how.say, hosts=meeting) as session:
        unreached = reach(target, session, how)
        if session.members:
            try:
                WindowRecorder(session, folder, options, how.say).record(wanted, files)
            except RecordingError as error:
                if not unreached:
                    raise
                # A rank that cannot be entered is often what the others wait for.
                other = _likeliest(list(unreached.values()))
                raise type(other)(f"{other.message}; {error.message}", hint=other.hint) from None
            files.failures |= {f"process {r.pid}": e for r, e in unreached.items()}
            return
    failure = _likeliest(list(unreached.values()))
    if how.route is not Route.auto or meeting is not None or not _started_for_daemon(target):
        raise failure
    how.say(f"{failure.message}: asking through Kineto's daemon instead")
    _kineto.record(target, folder, wanted, options, how, files)


def _record_over_store(
    address: str,
    folder: RecordingFolder,
    wanted: Wanted,
    options: Options,
    how: Reach,
    files: Files,
) -> None:
    with JobStore.open(address) as store:
        ranks, world_size = store.ranks()
        how.say(f"{len(ranks)} ranks listen on the job's store")
        members = [
            Member(
                store.channel(rank), rank.pid, rank=rank.rank, reopen=partial(store.channel, rank)
            )
            for rank in ranks
        ]
        with Session(members, timeout_s=how.timeout_s, say=how.say) as session:
            WindowRecorder(session, folder, options, how.say).record(wanted, files)
    files.world_size = files.world_size or world_size


def _started_for_daemon(ranks: Sequence[RankProcess]) -> bool:
    with suppress(AttachError):
        return all(daemon.listens(rank.process) for rank in ranks)
    return False


def _likeliest(failures: Sequence[RecordingError]) -> RecordingError:
    """The error that most ranks have, with how many."""
    kinds = [type(failure) for failure in failures]
    first = max(failures, key=lambda failure: kinds.count(type(failure)))
    if len(failures) == 1:
        return first
    return type(first)(
        f"none of {len(failures)} ranks can be reached; {first.message}", hint=first.hint
    )


def _manifest(target: Sequence[RankProcess] | str, files: Files, wanted: Wanted) -> Manifest:
    world_size = files.world_size
    if world_size is None and not isinstance(target, str):
        world_size = next((r.world_size for r in target if r.world_size is not None), None)
    present = [rank.rank for rank in files.ranks]
    if world_size is not None and present and max(present) >= world_size:
        world_size = None  # what the processes say cannot be
    absent = manifest.missing(present, world_size)
    window = Window(steps=wanted.steps, seconds=wanted.seconds)
    if files.taken is not None:
        start = files.taken.start
        window = replace(
            window,
            steps=start.steps,
            seconds=start.seconds if start.steps is None else wanted.seconds,
            clock=start.clock,
            start=next(iter(start.start.values())),
        )
    content = Manifest(
        ranks=tuple(sorted(files.ranks, key=lambda rank: rank.rank)),
        world_size=world_size,
        started_unix_ns=files.started_unix_ns,
        tool_version=__version__,
        window=window,
        observer=manifest.observer_of(rank.step_times for rank in files.ranks),
        missing_ranks=absent,
    )
    return replace(content, notes=tuple(recording_notes(content, files)))
