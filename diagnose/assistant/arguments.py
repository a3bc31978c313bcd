"""What each tool takes: checked here, and the JSON Schema that an assistant is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from diagnose.errors import UsageError
from diagnose.wording.plain import plain

MOST_ROWS = 200
_MOST_SHOWN = 300

Handle = Annotated[str, msgspec.Meta(description="The handle that `load` returned, as r1.")]


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a tool."""


class LoadAsked(Asked, frozen=True):
    """Arguments of ``load``."""

    path: Annotated[
        str,
        msgspec.Meta(
            description="A trace file (.json, .json.gz, .zip) or a folder that holds the traces "
            "of one job. Only paths under the folders of this server can be loaded."
        ),
    ]
    only: Annotated[
        Literal["gpu", "launches", "shapes"] | None,
        msgspec.Meta(
            description="Read less of a trace that is too large: 'gpu' keeps GPU operations "
            "alone, 'launches' also calls into the runtime, 'shapes' also input shapes."
        ),
    ] = None


class ReportAsked(Asked, frozen=True):
    """Arguments of ``report``."""

    recording: Handle
    format: Annotated[
        Literal["markdown", "json"],
        msgspec.Meta(description="Markdown is shorter; JSON has every figure exactly."),
    ] = "markdown"
    sections: Annotated[
        list[str] | None,
        msgspec.Meta(
            description="Only these sections: keys of the JSON or headings of the Markdown, as "
            "`left_out` of an earlier answer names them."
        ),
    ] = None


class FindingsAsked(Asked, frozen=True):
    """Arguments of ``findings``."""

    recording: Handle
    finding: Annotated[
        str | None,
        msgspec.Meta(
            description="The key of a finding, from the list: it is answered in full. "
            "Leave out to list all."
        ),
    ] = None


class ExplainAsked(Asked, frozen=True):
    """Arguments of ``explain``."""

    topic: Annotated[
        str,
        msgspec.Meta(
            description="The id of a rule (straggler-rank), an environment variable (NCCL_ALGO), "
            "or 'folklore'."
        ),
    ]


class TimelineAsked(Asked, frozen=True):
    """Arguments of ``timeline``."""

    recording: Handle
    what: Annotated[
        Literal["gpu", "host", "calls"],
        msgspec.Meta(
            description="GPU operations; operators and annotations on the host; or calls into "
            "the GPU runtime (launches, copies, waits)."
        ),
    ] = "gpu"
    rank: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None, msgspec.Meta(description="Only this rank.")
    ] = None
    source: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(description="Place of a file in `inputs` of `load`, where ranks are unknown."),
    ] = None
    device: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(description="Number of a GPU within its process."),
    ] = None
    stream: Annotated[int | None, msgspec.Meta(description="Only this stream of the GPU.")] = None
    step: Annotated[
        str | int | None,
        msgspec.Meta(
            description="A step's name or number: GPU operations launched in it, on the host what "
            "begins in it."
        ),
    ] = None
    activity: Annotated[
        Literal["compute", "communication", "memory"] | None,
        msgspec.Meta(description="Only what the GPU does of this kind."),
    ] = None
    name: Annotated[
        str | None, msgspec.Meta(description="A part of the name, in upper or lower case.")
    ] = None
    from_us: Annotated[
        float | None,
        msgspec.Meta(
            description="Operations that run at or after this time, in microseconds on the clock "
            "of the trace, as in `start_us` of rows and in `spans` of findings."
        ),
    ] = None
    to_us: Annotated[
        float | None, msgspec.Meta(description="Operations that begin before this time.")
    ] = None
    by: Annotated[
        Literal["operation", "name"],
        msgspec.Meta(description="A row for each operation, or one for all of a name."),
    ] = "operation"
    sort: Annotated[
        Literal["time", "duration"],
        msgspec.Meta(description="By time (file by file), or the longest first."),
    ] = "duration"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS, description="Rows in the answer.")] = 20


_Kind = TypeVar("_Kind", bound=Asked)


def checked(tool: str, kind: type[_Kind], given: Mapping[str, Any]) -> _Kind:
    """The arguments that a client gave. UsageError says which is wrong, and what exists.

    Numbers may come as texts: that is how some assistants write them.
    """
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as problem:
        known = ", ".join(kind.__struct_fields__)
        said, at, place = plain(str(problem), _MOST_SHOWN).partition(" - at `$.")
        where = f"{tool}, {place.rstrip('`')}" if at else tool
        raise UsageError(
            f"{where}: {said[:1].lower()}{said[1:]}", hint=f"arguments of {tool}: {known}"
        ) from None


def schema_of(kind: type[Asked]) -> dict[str, Any]:
    """JSON Schema of the arguments, in one piece and as plain as every client can take it."""
    _, components = msgspec.json.schema_components([kind])
    described = components[kind.__name__]
    return {
        "type": "object",
        "properties": {name: _plain(one) for name, one in described["properties"].items()},
        "required": described["required"],
        "additionalProperties": False,
    }


def _plain(described: Mapping[str, Any]) -> dict[str, Any]:
    """What may be left out is not required: there is no need to allow null and say so."""
    result = dict(described)
    kinds = [one for one in result.pop("anyOf", []) if one.get("type") != "null"]
    if len(kinds) == 1:
        result |= kinds[0]
    elif kinds:
        result["type"] = [one["type"] for one in kinds]
    if result.get("default", "") is None:
        del result["default"]
    if "enum" in result:
        result["type"] = "string"
    return result
