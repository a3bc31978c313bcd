"""The packed agent: what is in it, in which order, and what it does where it is unpacked."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from diagnose.attach.injection import _boot, payload

AGENT = Path(payload.__file__).resolve().parents[2] / "agent"
SERVER = """
started = []

def running():
    return None

def start(**arguments):
    started.append(arguments)
"""


@pytest.fixture(autouse=True)
def _no_agent_here() -> object:
    assert _boot.PACKAGE not in sys.modules
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == _boot.PACKAGE]:
        del sys.modules[name]


def test_bundle_holds_what_the_server_needs() -> None:
    texts, order = payload.bundle()
    assert {"", "server", "protocol", "window", "steps"} <= texts.keys()
    assert sorted(order) == sorted(texts)
    for name, text in texts.items():
        assert text == (AGENT / f"{name or '__init__'}.py").read_text("utf-8")
        for other in payload.imports(text, while_loading=True) - {name}:
            assert order.index(other) < order.index(name), f"{name} needs {other}"


def test_text_can_be_injected() -> None:
    text = payload.bootstrap()
    assert text.isascii()
    assert "\0" not in text
    assert text.count(payload.PAGE) == 1
    assert len(text) < 100_000
    assert payload.PAGE not in payload.bootstrap(None)


@pytest.mark.parametrize(
    ("text", "always", "while_loading"),
    [
        ("from .steps import Mark\n", {"steps"}, {"steps"}),
        ("def f():\n    from .window import Window\n", {"window"}, set()),
        ("from . import protocol, AGENT_VERSION\n", {"protocol", ""}, {"protocol", ""}),
        ("try:\n    from . import steps\nexcept ImportError:\n    pass\n", {"steps"}, {"steps"}),
        ("if TYPE_CHECKING:\n    from .server import Agent\n", set(), set()),
        ("import steps\nfrom steps import Mark\n", set(), set()),
    ],
)
def test_imports(text: str, always: set[str], while_loading: set[str]) -> None:
    assert payload.imports(text) == always
    assert payload.imports(text, while_loading=True) == while_loading


def test_load_order() -> None:
    texts = {
        "server": "from . import window\nfrom .steps import Mark\n",
        "window": "from .steps import Mark\n",
        "steps": "def f():\n    from .server import start\n",
        "": "",
    }
    assert payload.load_order(texts) == ["", "steps", "window", "server"]


def test_a_circle_is_refused() -> None:
    texts = {"steps": "from . import window", "window": "from . import steps"}
    with pytest.raises(ImportError, match="circle"):
        payload.load_order(texts)


def test_running_it_starts_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "": "",
        "steps": "STRIDE = 3\n",
        "server": SERVER + "def late():\n    from .steps import STRIDE\n    return STRIDE\n",
    }
    monkeypatch.setattr(payload, "bundle", lambda: (texts, ["", "steps", "server"]))
    names: dict[str, object] = {"__name__": "__main__"}
    text = payload.bootstrap("(4096, 8192)", directory="/run/it's")
    exec(compile(text, "<string>", "exec"), names)
    server = sys.modules["_diagnose_agent.server"]
    assert server.started == [{"injected": True, "page": (4096, 8192), "directory": "/run/it's"}]
    assert server.late() == 3
    assert names.keys() == {"__name__", "__builtins__"}
    # Tracebacks and inspect find the lines, though there is no file.
    assert server.start.__code__.co_filename == "<diagnose-agent>/server.py"
    assert server.__loader__.get_source("_diagnose_agent.steps") == "STRIDE = 3\n"
    assert not hasattr(server, "__file__")


def test_an_agent_that_is_there_is_used() -> None:
    first = _boot.load({"": "", "server": SERVER}, ["", "server"])
    assert _boot.load({"": "", "server": "raise ValueError"}, ["", "server"]) is first


def test_an_agent_that_is_leaving_is_replaced() -> None:
    leaving = "class Agent:\n    gone = True\n\ndef running():\n    return Agent\n"
    first = _boot.load({"": "", "server": leaving}, ["", "server"])
    second = _boot.load({"": "", "server": SERVER}, ["", "server"])
    assert second is not first
    assert sys.modules["_diagnose_agent.server"] is second


def test_of_two_that_come_at_once_one_loads() -> None:
    begun, go_on = threading.Event(), threading.Event()
    hooks = sys.modules["diagnose_test_events"] = ModuleType("diagnose_test_events")
    hooks.wait = lambda: (begun.set(), go_on.wait(10))  # type: ignore[attr-defined]
    slow = "import diagnose_test_events as events\nevents.wait()\n"
    found: list[ModuleType] = []

    def load(text: str) -> None:
        found.append(_boot.load({"": text, "server": SERVER}, ["", "server"]))

    threads = [threading.Thread(target=load, args=(text,)) for text in (slow, "raise ValueError")]
    try:
        threads[0].start()
        assert begun.wait(10)
        threads[1].start()
        go_on.set()
        for thread in threads:
            thread.join(10)
    finally:
        del sys.modules["diagnose_test_events"]
    assert len(found) == 2
    assert found[0] is found[1] is sys.modules["_diagnose_agent.server"]


def test_of_a_failure_nothing_stays() -> None:
    with pytest.raises(ZeroDivisionError):
        _boot.load({"": "", "steps": "", "server": "1 / 0"}, ["", "steps", "server"])
    assert not [name for name in sys.modules if name.startswith(_boot.PACKAGE)]


def test_it_raises_nothing_whatever_happens() -> None:
    """Not even SystemExit or KeyboardInterrupt, and not on standard error."""
    for program in ("1/0", "raise SystemExit(3)", "raise KeyboardInterrupt", "syntax error"):
        text = payload.wrapped(program, {})
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=20)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_names_are_known_to_the_program() -> None:
    text = payload.wrapped("OUT.append(PAGE)", {"OUT": "found", "PAGE": "(1, 2)"})
    found: list[object] = []
    exec(compile(text, "<string>", "exec"), {"found": found})
    assert found == [(1, 2)]
