"""The execution traces that are recorded in the same window as the traces: asked for, fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diagnose.attach.session import Member
from diagnose.collect._compress import SUFFIX
from diagnose.collect._delivery import Delivery, delivery
from diagnose.collect._folder import RecordingFolder
from diagnose.collect._sync_notes import KEY, LOST, OVER_STORE, sync_notes
from diagnose.errors import RecordingError
from diagnose.manifest import RecordingNote

Replies = Mapping[Member, Mapping[str, Any]]


class Checks:
    """One window's execution traces. Without any use unless ``wanted``."""

    def __init__(self, folder: RecordingFolder, *, wanted: bool) -> None:
        self.wanted = wanted
        self.paths: dict[Member, Path] = {}
        """Those that have arrived, in the recording's folder."""
        self._folder = folder
        self._ways: dict[Member, Delivery] = {}
        self._why_not: dict[Member, str] = {}

    def asked(self, member: Member) -> str | None:
        """The file that a member's agent is told; None for none."""
        if not self.wanted:
            return None
        if member.process is None:
            self._why_not[member] = OVER_STORE
            return None
        if member in self._ways:  # a second try: of the first one nothing may lie there
            self._ways[member].discard()
            self._target(member).unlink(missing_ok=True)
        else:
            folder = getattr(member.channel, "folder", "")
            self._ways[member] = delivery(member.process, folder, self._target(member))
        return self._ways[member].asked

    def fetch(self, traces: Iterable[Member], replies: Replies) -> None:
        """Those of the members that have a trace; of others nothing stays."""
        kept = set(traces)
        for member, way in self._ways.items():
            said = replies.get(member, {}).get(KEY)
            if member not in kept:
                self._target(member).unlink(missing_ok=True)
            elif isinstance(said, dict) and "path" in said:
                try:
                    self.paths[member] = way.arrive()
                except RecordingError as error:
                    self._why_not[member] = error.message

    def find(self, members: Iterable[Member]) -> None:
        """Those that are whole in the folder already, after the recording was stopped."""
        self.paths.clear()
        if not self.wanted:
            return
        for member in members:
            plain = self._target(member)
            # For an instant both are there: the compressed one is whole then.
            for path in (plain.with_name(plain.name + SUFFIX), plain):
                if path.is_file():
                    self.paths[member] = path
                    break

    def notes(self, members: Iterable[Member], replies: Replies) -> list[RecordingNote]:
        """What has to be said of those that are not there, or not complete."""
        if not self.wanted:
            return []
        said: dict[int, Any] = {}
        for member in members:
            assert member.rank is not None
            answer = replies.get(member, {}).get(KEY)
            if not isinstance(answer, dict):
                answer = None  # whatever it is, it is no sentence of ours
            elif "path" in answer and member not in self.paths:
                answer = LOST
            said[member.rank] = self._why_not.get(member) or answer
        return sync_notes(said)

    def discard(self) -> None:
        """Remove what lies outside of the recording's folder. Never raises."""
        for way in self._ways.values():
            way.discard()

    def _target(self, member: Member) -> Path:
        assert member.rank is not None
        return self._folder.file(member.rank, "execution_trace.json")
