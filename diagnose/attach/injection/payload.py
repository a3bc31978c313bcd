"""The agent as one line of Python: its sources packed, and what unpacks them in the job.

No file of ours has to be visible where the job runs, and nothing but text is carried
over, so it fits every version of Python that the agent does.
"""

from __future__ import annotations

import ast
import base64
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

from diagnose.attach.injection._boot import ENTRY
from diagnose.attach.injection.inject import PAGE


def bootstrap(page: str | None = PAGE, *, directory: str | None = None) -> str:
    """A text of Python that starts the agent in the process that runs it.

    ``page`` is how the memory it runs from is written, as ``inject`` fills it in; None
    without one. ``directory`` is where the agent listens, by default what it chooses.
    Running it raises nothing and leaves no name in ``__main__``.
    """
    texts, order = bundle()
    boot = resources.files("diagnose.attach.injection").joinpath("_boot.py").read_text("utf-8")
    program = f"{boot}\nboot({texts!r}, {order!r}, PAGE, DIRECTORY)\n"
    return wrapped(program, {"PAGE": page or "None", "DIRECTORY": ascii(directory)})


def wrapped(program: str, names: Mapping[str, str]) -> str:
    """A program as ASCII text that runs it in a namespace of its own and swallows what it raises.

    ``names`` are known to the program: name to expression. Also the bare way to test a route.
    """
    packed = base64.b85encode(zlib.compress(program.encode(), 9)).decode()
    own = "".join(f", {name!r}: {expression}" for name, expression in names.items())
    return (
        "try:\n"
        " exec(compile(__import__('zlib').decompress(__import__('base64').b85decode"
        f"('{packed}')), '<diagnose-agent>', 'exec', dont_inherit=True),"
        f" {{'__name__': '_diagnose_boot'{own}}})\n"
        "except BaseException:\n"
        " pass\n"
    )


@cache
def bundle() -> tuple[dict[str, str], list[str]]:
    """The texts of the modules that the agent's server imports, and an order in which they load.

    The package itself has the empty name.
    """
    texts: dict[str, str] = {}
    waiting = [ENTRY, ""]
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = _source(name)
            waiting += [other for other in imports(texts[name]) if _exists(other)]
    return texts, load_order(texts)


def load_order(texts: Mapping[str, str]) -> list[str]:
    """The modules so that each comes after what it imports while it is loaded.

    Raises ImportError for a circle.
    """
    needs = {
        name: {other for other in imports(text, while_loading=True) if other in texts} - {name}
        for name, text in texts.items()
    }
    order: list[str] = []
    while needs:
        ready = sorted(name for name, others in needs.items() if others <= set(order))
        if not ready:
            raise ImportError(f"modules of the agent import each other in a circle: {list(needs)}")
        order += ready
        for name in ready:
            del needs[name]
    return order


def imports(text: str, *, while_loading: bool = False) -> set[str]:
    """Modules of the same package that a module imports, relatively; "" is the package itself."""
    found: set[str] = set()
    for node in _statements(ast.parse(text), while_loading):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            if node.module:
                found.add(node.module)
            else:
                # A name may be a module, or something that the package itself defines.
                names = {alias.name for alias in node.names}
                modules = {name for name in names if _exists(name)}
                found |= modules | ({""} if names - modules else set())
    return found


def _statements(tree: ast.AST, while_loading: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if while_loading and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _statements(node, while_loading)


@cache
def _exists(name: str) -> bool:
    return resources.files("diagnose.agent").joinpath(f"{name or '__init__'}.py").is_file()


def _source(name: str) -> str:
    place = resources.files("diagnose.agent").joinpath(f"{name or '__init__'}.py")
    return place.read_text("utf-8")
