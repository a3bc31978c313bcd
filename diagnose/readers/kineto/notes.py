"""What was found wrong while reading, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.readers.kineto.chunks import Window
from diagnose.readers.kineto.walk import Damage
from diagnose.trace import Note


def _events(count: int, what: str = "event") -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def pair_notes(path: str, begins: int, gpu_begins: int, ends: int) -> list[Note]:
    """Notes on begins and ends that found no partner; ``begins`` includes ``gpu_begins``."""
    notes = []
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
        notes.append(
            Note(
                "event-dropped",
                "warning",
                f"{path}: {_events(damage.num_dropped)}, the first at byte"
                f" {damage.first_dropped} of the text, could not be read and left out, so busy"
                " time is a lower bound.",
                damage.num_dropped,
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
    if not list_closed or not document_closed or window.damage:
        notes.append(_truncated(path, damage, window, list_closed=list_closed))
    return notes


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
