"""Makes the agent's package from its texts, in memory: this file runs inside of the job.

Its own text travels with the bundle, so it knows nothing of ``diagnose``, works on every
Python that the agent does, and leaves nothing but the modules of ``_diagnose_agent``.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

PACKAGE = "_diagnose_agent"
ENTRY = "server"
"""The module whose ``start`` begins the agent."""

FAILURE_MARK = b"diagnose:"
FAILURE_BYTES = 256
"""The end of the memory it runs from is room for word of a failure."""

_LOADING_TRIES, _LOADING_PAUSE_S = 200, 0.01


class TextLoader:
    """Loads the modules of one bundle; tracebacks and ``inspect`` find their lines by it."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual: an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the text of a module in it."""
        name = module.__name__
        place = f"<diagnose-agent>/{name.partition('.')[2] or '__init__'}.py"
        exec(compile(self.texts[name], place, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, name: str) -> str | None:
        """The text of a module."""
        return self.texts.get(name)


def load(texts: dict[str, str], order: list[str]) -> ModuleType:
    """Load the modules in this order, the package being the empty name; return the server.

    An agent that is there already is used as it is, unless it is just leaving. If one
    module fails, none stays.
    """
    present = sys.modules.get(PACKAGE)
    if present is not None:
        server = _server_of(present)
        if not getattr(server.running(), "gone", False):
            return server
        sys.modules.pop(PACKAGE, None)
    loader = TextLoader({_full(name): text for name, text in texts.items()})
    package = _empty(loader, "")
    # Of two that come at once, one wins: nothing can come between in setdefault.
    winner = sys.modules.setdefault(PACKAGE, package)
    if winner is not package:
        return _server_of(winner)
    made = {PACKAGE: package}
    try:
        for name in order:
            module = package
            if name:
                module = sys.modules[_full(name)] = made[_full(name)] = _empty(loader, name)
            loader.exec_module(module)
            if name:
                setattr(package, name, module)
    except BaseException:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        raise
    return package.server  # type: ignore[no-any-return]


def _server_of(package: ModuleType) -> ModuleType:
    """The server of an agent that somebody else loaded, or is just loading."""
    if not isinstance(getattr(package.__spec__, "loader", None), SourceFileLoader):
        for _ in range(_LOADING_TRIES):
            if hasattr(package, ENTRY):
                return package.server  # type: ignore[no-any-return]
            time.sleep(_LOADING_PAUSE_S)
    return importlib.import_module(PACKAGE + "." + ENTRY)


def boot(
    texts: dict[str, str],
    order: list[str],
    page: tuple[int, int] | None,
    directory: str | None,
) -> None:
    """Load the agent and start it; never raises. ``page``: the memory this runs from, or None."""
    try:
        load(texts, order).start(injected=True, page=page, directory=directory)
    except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the job
        if page is not None:
            leave_word(page, error)


def leave_word(page: tuple[int, int], error: BaseException) -> None:
    """Write why it failed at the end of our own memory, where the other side looks."""
    try:
        word = f"{type(error).__name__}: {error}"
        data = FAILURE_MARK + word.encode("utf-8", "replace")[: FAILURE_BYTES - 16] + b"\0"
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(page[0] + page[1] - FAILURE_BYTES)
            memory.write(data)
    except BaseException:  # noqa: BLE001 - as above
        pass


def _full(name: str) -> str:
    return PACKAGE + "." + name if name else PACKAGE


def _empty(loader: TextLoader, name: str) -> ModuleType:
    # No importlib.abc.Loader, which would have to be imported into the job.
    spec = ModuleSpec(_full(name), loader, is_package=not name)  # type: ignore[arg-type]
    return importlib.util.module_from_spec(spec)
