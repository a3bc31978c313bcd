"""What was found wrong while reading, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.readers.kineto.begin_end import Match
from diagnose.readers.kineto.chunks import Window
from diagnose.readers.kineto.walk import Damage
from diagnose.trace import Note

_MOST_SHOWN = 4


def _events(count: int, what: str = "event") -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def pair_notes(path: str, match: Match) -> list[Note]:
    """Notes on begins and ends that found no partner, or one that others lie across."""
    begins, ends, crossed = match.num_unmatched_begins, match.num_unmatched_ends, match.num_crossed
    gpu_begins = len(match.open_rows.get("gpu", ()))
    notes = []
    if crossed:
        notes.append(
            Note(
                "crossed-pairs",
                "info",
                f"{path}: {_events(crossed, 'end mark')} named a begin that was not the latest on"
                " its thread and closed that; the times are as written.",
                crossed,
            )
        )
    if begins:
        notes.append(
            Note(
                "unmatched-begin",
                "warning",
                f"{path}: {_events(begins, 'begin mark')} ({gpu_begins} of GPU work) without an end"
                " left out, so busy time is a lower bound.",
                begins,
            )
        )
    if ends:
        notes.append(
            Note(
                "unmatched-end",
                "warning",
                f"{path}: {_events(ends, 'end mark')} without a begin; what they closed began"
                " before the recording or was lost, and counts for nothing.",
                ends,
            )
        )
    return notes


def category_notes(path: str, uncounted: Mapping[str, int]) -> list[Note]:
    """A note on events that look like work of a device and are of no known category."""
    if not uncounted:
        return []
    count = sum(uncounted.values())
    shown = sorted(uncounted, key=lambda category: -uncounted[category])[:_MOST_SHOWN]
    listed = ", ".join(f"{category[:60]!r}: {uncounted[category]}" for category in shown)
    more = ", ..." if len(uncounted) > len(shown) else ""
    sentence = (
        f"{path}: {_events(count)} of unknown category with a device and a stream"
        f" ({listed}{more}) were not counted; if they are GPU work, busy time is too low by it."
    )
    return [Note("unknown-category", "warning", sentence, count)]


def time_notes(path: str, invalid: Mapping[str, int], num_zero: int) -> list[Note]:
    """A note on events left out for their times; its count is that of GPU events, if any.

    ``invalid``: per group, events whose times could not be read; ``num_zero``:
    GPU events whose time was never set.
    """
    gpu = invalid["gpu"] + num_zero
    host = sum(invalid.values()) - invalid["gpu"]
    if not gpu and not host:
        return []
    parts = []
    if gpu:
        zero = f" ({num_zero} of them at time 0)" if num_zero else ""
        parts.append(
            f"{_events(gpu, 'GPU event')} without a usable time{zero} left out: some GPU work of"
            " this window is missing, so busy time is a lower bound"
        )
    if host:
        parts.append(f"{_events(host, 'host event')} without a usable time left out")
    sentence = f"{path}: {'; '.join(parts)}."
    return [Note("invalid-timestamp", "warning" if gpu else "info", sentence, gpu or host)]


def damage_notes(
    path: str,
    damage: Damage,
    window: Window,
    *,
    list_closed: bool,
    document_closed: bool,
    damaged_at: int | None,
    surplus: int,
    num_events: int,
) -> list[Note]:
    """Notes on the text: what was repaired, dropped, cut off. Offsets are in its bytes."""
    notes = []
    if damage.num_not_finite:
        notes.append(
            Note(
                "value-not-finite",
                "info",
                f"{path}: {_events(damage.num_not_finite, 'value')} (inf or nan) count as missing.",
                damage.num_not_finite,
            )
        )
    if damage.num_repaired or damaged_at is not None or surplus:
        notes.append(_repaired(path, damage, damaged_at, surplus))
    if damage.num_dropped:
        notes.append(_dropped(path, damage, window, num_events))
    if damage.num_foreign:
        notes.append(
            Note(
                "not-an-event",
                "info",
                f"{path}: entries of the list that are no events, skipped: {damage.num_foreign};"
                " no figure changes.",
                damage.num_foreign,
            )
        )
    if damage.num_unreadable:
        notes.append(
            Note(
                "value-unreadable",
                "info",
                f"{path}: {_events(damage.num_unreadable, 'value')} out of range or of the wrong"
                " type count as unknown.",
                damage.num_unreadable,
            )
        )
    if list_closed and document_closed and window.damage:
        notes.append(
            Note(
                "text-repaired",
                "warning",
                f"{path}: {window.damage}; the trace itself was read to its end.",
            )
        )
    elif not list_closed or not document_closed:
        notes.append(_truncated(path, damage, window, list_closed=list_closed))
    return notes


def _dropped(path: str, damage: Damage, window: Window, num_events: int) -> Note:
    """At each place at least one event is lost; the bytes there tell how many it may be."""
    usual = (window.num_bytes - damage.dropped_bytes) / max(1, num_events - damage.num_dropped)
    about = round(damage.dropped_bytes / usual) if usual > 0 else 0
    many = f", room for about {about} events" if about > 2 * damage.num_dropped else ""
    sentence = (
        f"{path}: at least {_events(damage.num_dropped)} could not be read and left out, the first"
        f" at byte {damage.first_dropped} of the text, {damage.dropped_bytes} bytes in all{many};"
        " busy time is a lower bound."
    )
    return Note("event-dropped", "warning", sentence, damage.num_dropped)


def _repaired(path: str, damage: Damage, damaged_at: int | None, surplus: int) -> Note:
    parts = []
    if damage.num_repaired:
        parts.append(
            f"text of {_events(damage.num_repaired)} was no legal JSON and was repaired, the first"
            f" at byte {damage.first_repaired}; names may show replacement characters, times are"
            " as written"
        )
    if damaged_at is not None:
        parts.append(f"metadata is damaged at byte {damaged_at} and was skipped from there")
    if surplus:
        parts.append(f"{surplus} bytes after the end of the trace were not read")
    count = damage.num_repaired + (damaged_at is not None) + bool(surplus)
    return Note("text-repaired", "warning", f"{path}: {'; '.join(parts)}.", count)


def _truncated(path: str, damage: Damage, window: Window, *, list_closed: bool) -> Note:
    how = f" ({window.damage})" if window.damage else ""
    if damage.truncated_at is not None:
        lost = window.num_bytes - damage.truncated_at
        sentence = (
            f"{path}: cut off inside the event at byte {damage.truncated_at} of its text{how};"
            f" its {lost} bytes and all that should follow are missing, so totals cover the part"
            " before only."
        )
    elif not list_closed:
        sentence = (
            f"{path}: cut off between events at byte {window.num_bytes} of its text{how}; later"
            " events, if there were any, are missing."
        )
    else:
        sentence = (
            f"{path}: cut off at byte {window.num_bytes} of its text{how}, behind the events;"
            " only metadata is missing."
        )
    return Note("truncated", "warning", sentence)
