"""Reads one Kineto trace: the document around, the events within, the notes about both."""

from __future__ import annotations

import gc
import re

import numpy as np
import numpy.typing as npt

from diagnose.errors import DamagedInputError, EmptyInputError, NotATraceError
from diagnose.readers.foreign import describe_foreign
from diagnose.readers.kineto.chunks import (
    BOUNDARY,
    CHUNK_BYTES,
    LARGEST_EVENT,
    Window,
    last_boundary,
)
from diagnose.readers.kineto.columns import ColumnBuilder
from diagnose.readers.kineto.decode import UNDECODABLE, Event, decode_events
from diagnose.readers.kineto.document import Document
from diagnose.readers.kineto.finish import finish
from diagnose.readers.kineto.notes import damage_notes
from diagnose.readers.kineto.prefilter import Prefilter
from diagnose.readers.kineto.walk import Damage, Walker
from diagnose.readers.raw import RawFile, ReadOptions, Stream
from diagnose.schema import Detail

BOM = b"\xef\xbb\xbf"
STEP_PREFIX = "ProfilerStep"
_BLANK = re.compile(rb"[ \t\r\n]*")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class KinetoReader:
    """Chrome trace JSON as torch.profiler and programs that rewrite its files write it.

    An object with ``traceEvents`` among its keys or a bare list of events, in
    any layout and order of keys, with complete events or begin/end pairs.
    """

    def __init__(self, chunk_bytes: int = CHUNK_BYTES, *, prefilter: bool = True) -> None:
        self._chunk_bytes = chunk_bytes
        self._prefilter = prefilter

    def sniff(self, head: bytes) -> bool:
        """Whether the content begins as a JSON object or list."""
        return head.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")

    def read(self, stream: Stream, path: str, options: ReadOptions) -> RawFile:
        """Read as far as possible.

        ``RawFile.num_events`` counts every entry of the list, of whatever kind,
        kept or not. Raises EmptyInputError (no byte), NotATraceError (no JSON, or
        JSON without events), DamagedInputError (cut off before the first event),
        DecompressionBombError and InputTooLargeError.
        """
        collecting = gc.isenabled()
        gc.disable()  # no cycles are made here, and millions of small objects would be searched
        try:
            window = Window(stream, path, chunk_bytes=self._chunk_bytes, progress=options.progress)
            return _Reading(window, options, prefilter=self._prefilter).read()
        finally:
            if collecting:
                gc.enable()


class _Reading:
    def __init__(self, window: Window, options: ReadOptions, *, prefilter: bool) -> None:
        prefixes = (STEP_PREFIX, *options.host_prefixes)
        self.window = window
        self.path = window.path
        self.builder = ColumnBuilder(window.path, options, prefixes)
        self.damage = Damage()
        self.num_events = 0
        self.list_closed = True
        self.is_trace = False
        """Whether an event with a phase was seen."""
        self._needed = window.chunk_bytes
        self._filter = Prefilter(options.detail, prefixes)
        # Where operators are wanted most events are, and choosing costs more than decoding.
        self._use_filter = prefilter and options.detail < Detail.SHAPES

    def read(self) -> RawFile:
        window = self.window
        window.more()
        if window.data.startswith(BOM):
            window.at = len(BOM)
        if not window.data and not window.damage:
            raise EmptyInputError(
                f"{self.path}: empty, not one byte", hint="Record again; the job may have died."
            )
        self._refuse_other_content()
        document = Document(window, self.damage, self._read_events)
        document.read()
        self._refuse_if_nothing(document)
        raw = finish(self.builder, self.path)
        raw.metadata = document.metadata
        base = document.metadata.get("baseTimeNanoseconds")
        raw.base_ns = base if isinstance(base, int) and 0 < base < 1 << 62 else None
        raw.num_bytes = window.num_bytes
        raw.num_events = self.num_events
        self.damage.num_unreadable += self.builder.num_unreadable
        raw.notes += damage_notes(
            self.path,
            self.damage,
            window,
            list_closed=self.list_closed,
            document_closed=document.complete,
            damaged_at=document.damaged_at,
            surplus=document.surplus,
            num_events=self.num_events,
        )
        raw.num_dropped = self.damage.num_dropped
        raw.complete = self.list_closed and not raw.num_dropped
        return raw

    def _refuse_other_content(self) -> None:
        head = self.window.data[self.window.at : self.window.at + 4096]
        foreign = describe_foreign(head)
        if foreign:
            raise NotATraceError(f"{self.path}: {foreign[0]}, not a trace", hint=foreign[1])
        text = head.lstrip()
        if text[:1] not in (b"{", b"[", b""):
            kind = "binary data" if b"\x00" in head else "text"
            shown = ascii(text[:40].decode("utf-8", "replace"))
            raise NotATraceError(
                f"{self.path}: not JSON; {kind} that begins with {shown}",
                hint="Give a trace that torch.profiler wrote (export_chrome_trace).",
            )

    def _refuse_if_nothing(self, document: Document) -> None:
        if self.is_trace:
            return
        cut = bool(self.window.damage) or not (document.complete and self.list_closed)
        entries = self.num_events + self.damage.num_dropped + self.damage.num_foreign
        if document.has_events and not cut and not entries:
            return  # an empty list is a trace of nothing
        empty = not self.window.num_bytes
        if cut and (document.is_object or document.has_events or empty):
            raise DamagedInputError(
                f"{self.path}: cut off or damaged at byte {self.window.num_bytes} of its text,"
                f" before the first complete event{self._how()}",
                hint="Copy the file again, or record again.",
            )
        if document.is_object and document.has_events and self.damage.num_dropped:
            raise DamagedInputError(
                f"{self.path}: damaged, not one of its events could be read; the first begins at"
                f" byte {self.damage.first_dropped} of its text",
                hint="Copy the file again, or record again.",
            )
        if document.has_events:
            what = "JSON, but no entry of its list is an event of a trace"
        elif document.is_object:
            what = 'JSON, but without a list "traceEvents"'
        else:
            what = "nothing but blanks"
        raise NotATraceError(
            f"{self.path}: {what}",
            hint="Give a trace that torch.profiler wrote (export_chrome_trace).",
        )

    def _how(self) -> str:
        return f" ({self.window.damage})" if self.window.damage else ""

    def _read_events(self) -> None:
        """The entries of a list, from behind its opening bracket to behind its closing one."""
        window = self.window
        self.list_closed = False
        while not self.list_closed:
            while len(window.data) - window.at < self._needed and window.more():
                pass
            if window.at >= len(window.data):
                return
            self._skip_separator()
            self._read_chunk()
            self.builder.check_memory(window.stored_share)
            if window.ended and window.at >= len(window.data):
                return

    def _skip_separator(self) -> None:
        window = self.window
        blank = _BLANK.match(window.data, window.at)
        window.at = blank.end() if blank else window.at

    def _read_chunk(self) -> None:
        window = self.window
        text = window.data[window.at :] if window.at else window.data
        cut = None if window.ended else last_boundary(text)
        if cut is None:
            if not window.ended and len(text) > LARGEST_EVENT:
                self._skip_giant(text)
            elif not self._decode(b"[" + text, final=True):
                self._walk(text)
            return
        end, start_of_next = cut
        selection = self._filter.select(text, end) if self._use_filter else None
        if selection is not None:
            try:
                events = decode_events(b"[" + b",".join(selection.events) + b"]")
            except UNDECODABLE:
                events = []
            # Else a chosen text is damaged, or more than one event: decode all, to find it.
            if len(events) == len(selection.events):
                self._add(events, selection.places, selection.num_events, filtered=True)
                window.at += start_of_next
                return
        if not self._decode(b"".join((b"[", memoryview(text)[:end], b"]")), final=False):
            self._walk(text)
        elif not self.list_closed:
            window.at += start_of_next

    def _decode(self, document: bytes, *, final: bool) -> bool:
        """Decode a list of events; advances the window only where the file's list ended in it.

        ``document`` is an opening bracket and the window's text, then a closing
        bracket unless it is ``final``.
        """
        try:
            events = decode_events(document)
            end = document.rfind(b"]")
        except UNDECODABLE as error:
            trailing = _TRAILING.search(str(error))
            if not trailing:
                return False
            end = document.rfind(b"]", 0, int(trailing[1]))
            try:
                events = decode_events(document[: end + 1])
            except UNDECODABLE:
                return False
            final = True
        self._add(events, np.arange(len(events)), len(events))
        if final:
            self.list_closed = True
            self.window.at += end
        return True

    def _walk(self, text: bytes) -> None:
        window = self.window
        walked = Walker(text, window.offset, self.damage, final=window.ended).walk()
        self._add(walked.events, np.array(walked.places, np.int64), walked.count)
        self.list_closed = walked.list_ended
        window.at += walked.consumed
        # An event longer than what there is: look again when there is twice as much.
        self._needed = window.chunk_bytes if walked.consumed else 2 * len(text)
        self._needed = max(self._needed, window.chunk_bytes)

    def _skip_giant(self, text: bytes) -> None:
        """An event larger than any real one: read on, without keeping it, to its successor."""
        window = self.window
        begin = window.offset
        self.num_events += 1
        while True:
            boundary = BOUNDARY.search(text)
            if boundary is not None:
                window.at += boundary.end()
                self.damage.dropped(begin, window.offset - begin)
                return
            window.at = max(window.at, len(window.data) - 256)
            if not window.more():
                self.damage.truncated_at = begin
                window.at = len(window.data)
                return
            text = window.data[window.at :]

    def _add(
        self,
        events: list[Event],
        places: npt.NDArray[np.int64],
        count: int,
        *,
        filtered: bool = False,
    ) -> None:
        """Keep events; ``filtered``: others of the ``count`` were seen to have a phase."""
        if filtered or any(event.ph for event in events):
            self.window.event_seen()
            self.is_trace = True
        if events:
            self.builder.add(events, places + self.num_events)
        self.num_events += count


READER = KinetoReader()
