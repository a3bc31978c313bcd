"""The Model Context Protocol over standard input and output. The only module that imports mcp."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from diagnose import __version__
from diagnose.assistant._one_at_a_time import OneAtATime
from diagnose.assistant.arguments import schema_of
from diagnose.assistant.folders import Folders
from diagnose.assistant.shelf import Shelf
from diagnose.assistant.tools import INSTRUCTIONS, Tool, Tools
from diagnose.errors import UsageError

_NAME = "torch-diagnose"
_INSTALL = "pip install 'torch-diagnose[mcp]'"


def serve(folders: Sequence[Path], explain: Callable[[str], str], *, debug: bool = False) -> None:
    """Serve until standard input ends. UsageError without the extra or for a missing folder.

    Only recordings under ``folders`` can be loaded; ``explain`` answers for rules and variables.
    Nothing but the protocol reaches standard output, whoever prints.
    """
    _require_sdk()
    shelf = Shelf(Folders(folders).allowed)
    tools = Tools(shelf, explain, debug=debug)
    # A read of standard input cannot be interrupted otherwise: Ctrl-C would wait for a line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(_converse(tools))


def _require_sdk() -> None:
    try:
        importlib.import_module("mcp.server.lowlevel")
    except ImportError as problem:
        missing = importlib.util.find_spec("mcp") is None
        what = "which is not installed" if missing else f"which cannot be imported ({problem})"
        raise UsageError(
            f"the Model Context Protocol needs the package mcp, {what}",
            hint=_INSTALL if missing else _INSTALL.replace("install", "install --upgrade"),
        ) from None


async def _converse(tools: Tools) -> None:
    import anyio
    from mcp.server.stdio import stdio_server

    calls = OneAtATime()
    server = _server(tools, calls)
    incoming, outgoing = _wire()
    lines: Any = _UntilItEnds(anyio.wrap_file(incoming), calls.leave)
    try:
        async with stdio_server(lines, anyio.wrap_file(outgoing)) as (read, write):
            await server.run(read, write, server.create_initialization_options())
    except Exception:
        # Versions of the SDK differ in what becomes of answers that nobody waits for any more.
        if not calls.left:
            raise


class _UntilItEnds:
    """The lines of a file; says when it ended, so that no call keeps the process alive."""

    def __init__(self, lines: Any, ended: Callable[[], None]) -> None:
        self._lines, self._ended = lines, ended

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._lines:
            yield line
        self._ended()


def _wire() -> tuple[Any, Any]:
    """Standard input and output for the protocol alone; what else is written goes to stderr."""
    sys.stdout.flush()
    incoming = os.fdopen(os.dup(0), "r", encoding="utf-8", errors="replace")
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # no stderr
        os.dup2(nothing, 1)
    os.close(nothing)
    return incoming, outgoing


def _server(tools: Tools, calls: OneAtATime) -> Any:
    """A server of either major version of the SDK: they differ in how handlers are given."""
    from mcp.server.lowlevel import Server

    said = {"version": __version__, "instructions": INSTRUCTIONS}
    if hasattr(Server, "call_tool"):
        return _with_decorators(Server(_NAME, **said), tools, calls)
    import mcp.types as types

    async def list_tools(_context: Any, _asked: Any) -> Any:
        return types.ListToolsResult(tools=_described(tools, types.Tool))

    async def call_tool(_context: Any, asked: Any) -> Any:
        return await _called(tools, calls, asked, types.CallToolResult)

    return Server(_NAME, **said, on_list_tools=list_tools, on_call_tool=call_tool)


def _with_decorators(server: Any, tools: Tools, calls: OneAtATime) -> Any:
    """Version 1. Handlers are set beneath its decorators, which check arguments on their own."""
    import mcp.types as types

    async def list_tools(_request: Any) -> Any:
        result = types.ListToolsResult(tools=_described(tools, types.Tool))
        return types.ServerResult(result)

    async def call_tool(request: Any) -> Any:
        return types.ServerResult(await _called(tools, calls, request.params, types.CallToolResult))

    server.request_handlers[types.ListToolsRequest] = list_tools
    server.request_handlers[types.CallToolRequest] = call_tool
    return server


async def _called(tools: Tools, calls: OneAtATime, asked: Any, result: Any) -> Any:
    answer = await calls.answer(lambda progress: tools.call(asked.name, asked.arguments, progress))
    content = [{"type": "text", "text": answer.text}]
    return result.model_validate({"content": content, "isError": answer.is_error})


def _described(tools: Tools, kind: Any) -> list[Any]:
    return [kind.model_validate(_description(tool)) for tool in tools.offered.values()]


def _description(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": schema_of(tool.takes),
        "annotations": {
            "title": tool.title,
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    }
