"""The panel of the selected operation: what it is, what launched it, who called, its peers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from dash import dcc, html

from dashboard import lanes, text
from dashboard.address import Address, Selected
from dashboard.kept import kept
from dashboard.shown import Shown
from dashboard.view import Component
from diagnose.figures.timeline import MS, duration
from diagnose.lanes import Op
from diagnose.lanes.details import Details, Fact, Peer
from diagnose.readers.arguments import Recorded
from diagnose.wording.numbers import size

_NAME = 80
_MOST_LISTED = 12
_MOST_WRITTEN = 4000
AT_ONCE_BYTES = 50_000_000
"""A file of fewer stored bytes is read again as soon as something is selected."""


def linked(found: Details) -> tuple[Op, ...]:
    """What arrows lead to: its launch, what it launched first, its peers."""
    launched = found.launched[:1] if found.num_launched else ()
    peers = tuple(peer.op for peer in found.peers if peer.op != found.op)
    return (*((found.launch,) if found.launch else ()), *launched, *peers)


def panel(shown: Shown, address: Address, found: Details) -> Component:
    """The panel's content; everything that it names can be clicked."""
    return html.Div(
        [
            html.Div(
                [
                    html.H2("Selected"),
                    dcc.Link("Close", href=address.replace(selected=None).href),
                ],
                className="panel-head",
            ),
            html.P(text.shown(found.name), className="name", title=text.whole(found.name)[:2000]),
            html.Table(html.Tbody([_start(shown, found.op), *map(_row, found.facts)])),
            *_one(shown, address, "Launched by", found.launch),
            *_many(shown, address, f"Launched ({found.num_launched:,})", found.launched),
            *_many(shown, address, "Called within", found.stack),
            *_peers(shown, address, found.peers),
            html.H3("All arguments"),
            html.Div(_arguments(shown, address.selected), id="arguments"),
        ]
    )


def _arguments(shown: Shown, selected: Selected | None) -> Component:
    """What the file says, if it was read before; else a button that reads it."""
    if selected is None:
        return None
    known = kept(shown)
    before = known.known_arguments(selected)
    if before is not None:
        return arguments(before)
    stored = known.file_bytes(selected)
    said = "" if stored is None else f" ({size(stored)})"
    slow = "" if reads_at_once(shown, selected) else " This takes a while."
    button = html.Button("Read them", id="arguments-ask", n_clicks=0, className="quiet")
    return html.P([button, f" from the file{said}.{slow}"], className="muted")


def reads_at_once(shown: Shown, selected: Selected) -> bool:
    """Whether the file is small enough to be read again without being asked."""
    stored = kept(shown).file_bytes(selected)
    return stored is not None and stored < AT_ONCE_BYTES


def arguments(found: Recorded) -> Component:
    """The arguments as a table, or why there are none."""
    if found.arguments is None:
        return html.P(text.whole(found.reason), className="muted")
    rows = [
        html.Tr([html.Th(text.shown(key, _NAME)), html.Td(_argument(key, value))])
        for key, value in found.arguments.items()
    ]
    return html.Table(html.Tbody(rows), className="arguments")


def _argument(key: str, value: object) -> Component:
    if isinstance(value, str) and key.lower() == "call stack":
        return html.Ol([html.Li(text.whole(one)) for one in value.split(";")], className="stack")
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.shown(written, _MOST_WRITTEN)


def _start(shown: Shown, op: Op) -> Component:
    where = shown.timeline.locate(op.table, op.row)
    return html.Tr([html.Th("start"), html.Td(f"{where.start_ns / MS:,.6f} ms")])


def _row(fact: Fact) -> Component:
    if fact.unit == "ns" and isinstance(fact.value, int):
        value = duration(fact.value)
    elif isinstance(fact.value, str):
        value = text.shown(fact.value)
    else:
        value = f"{fact.value:,} {fact.unit}" if fact.label not in _PLAIN else str(fact.value)
    return html.Tr([html.Th(fact.label), html.Td(value)])


_PLAIN = frozenset({"correlation", "stream", "device", "external id", "sequence"})


def _one(shown: Shown, address: Address, title: str, op: Op | None) -> Iterator[Component]:
    if op is not None:
        yield from _many(shown, address, title, [op])


def _many(shown: Shown, address: Address, title: str, ops: Sequence[Op]) -> Iterator[Component]:
    if not ops:
        return
    yield html.H3(title)
    yield html.Ul([html.Li(_link(shown, address, op)) for op in ops[:_MOST_LISTED]])


def _peers(shown: Shown, address: Address, peers: Sequence[Peer]) -> Iterator[Component]:
    if not peers:
        return
    yield html.H3("The same collective on all ranks")
    head = html.Tr([html.Th(one) for one in ("rank", "arrived", "duration", "waited")])
    rows = [
        html.Tr(
            [
                html.Td(_link(shown, address, peer.op, shown.trace.sources[peer.source].label)),
                html.Td("-" if peer.late_ns is None else f"+{duration(peer.late_ns)}"),
                html.Td(duration(peer.duration_ns)),
                html.Td(duration(peer.wait_ns)),
            ]
        )
        for peer in peers[: 4 * _MOST_LISTED]
    ]
    yield html.Table([html.Thead(head), html.Tbody(rows)], className="peers")


def _link(shown: Shown, address: Address, op: Op, label: str | None = None) -> Component:
    table = shown.timeline.table(op.table)
    name = shown.trace.strings[int(table["name"][op.row])] if label is None else label
    return dcc.Link(text.shown(name, _NAME), href=lanes.showing(shown.timeline, address, op).href)
