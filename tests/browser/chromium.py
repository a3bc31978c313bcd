"""Chromium without a window, driven over its own protocol: two pipes and JSON, no package.

The protocol ends each message with a zero byte (``--remote-debugging-pipe``; Chromium
reads from descriptor 3 and writes to 4). https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ANSWER_S = 60.0
_TRAFFIC = ("Network.requestWillBeSent", "Network.loadingFinished", "Network.loadingFailed")


class Box(NamedTuple):
    """A rectangle in the window, in pixels."""

    x: float
    y: float
    width: float
    height: float

    def at(self, across: float, down: float) -> tuple[float, float]:
        """The place at a share of its width and height."""
        return self.x + across * self.width, self.y + down * self.height


def find() -> str | None:
    """The browser: ``$CHROMIUM``, or the first of the usual names that is installed."""
    asked = os.environ.get("CHROMIUM")
    return asked or next(filter(None, map(shutil.which, NAMES)), None)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors have numbers above those that the protocol uses."""
    low = os.pipe()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in low]
    for one in low:
        os.close(one)
    return high[0], high[1]


class Chromium:
    """A browser with one page. Close it: it is a process."""

    def __init__(self, program: str, profile: Path) -> None:
        ours_in, theirs_out = _pipe()
        theirs_in, ours_out = _pipe()
        arguments = [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            # A container gives little shared memory, and root has no sandbox.
            "--disable-dev-shm-usage",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
        ]
        # The numbers 3 and 4 are the protocol's; a shell moves ours there.
        moved = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask and wait for the answer. RuntimeError if the browser refuses."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            if not chunk:
                raise RuntimeError("Chromium did not answer, or ended")
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, awaited. RuntimeError if it throws."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def look(self, *, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        """How wide the page is, and whether the system prefers dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, url: str, ready: str = "true") -> None:
        """Load a page and wait until ``ready`` holds in it. What it logs is in ``problems``."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _ANSWER_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(deadline))
        self.wait_for(ready)

    def wait_for(self, condition: str, seconds: float = 30.0) -> None:
        """Until an expression is true. RuntimeError if it never is."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.evaluate(f"Boolean({condition})"):
                return
            time.sleep(0.05)
        raise RuntimeError(f"never true: {condition}; {self.problems()}")

    def settle(self, quiet_s: float = 0.25, seconds: float = 60.0) -> None:
        """Until the page has asked for nothing and waited for nothing for a while.

        RuntimeError if it never rests. Answers are counted against requests, so a slow
        server is waited for; what a page draws afterwards is for ``wait_for``.
        """
        deadline = time.monotonic() + seconds
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < quiet_s or self._waiting():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the page never rests: {self._waiting()} {self.problems()}")
            before = len(self.events)
            self.evaluate("new Promise(next => setTimeout(next, 40))")
            if any(one.get("method") in _TRAFFIC for one in self.events[before:]):
                quiet_since = time.monotonic()

    def _waiting(self) -> list[str]:
        """Addresses of requests that have no answer yet."""
        asked: dict[str, str] = {}
        for event in self.events:
            if event.get("method") == "Network.requestWillBeSent":
                if event["params"].get("type") == "Document":
                    # Requests of a page that was left get no answer.
                    asked.clear()
                asked[event["params"]["requestId"]] = event["params"]["request"]["url"]
            elif event.get("method") in ("Network.loadingFinished", "Network.loadingFailed"):
                asked.pop(event["params"]["requestId"], None)
        return list(asked.values())

    def box(self, selector: str) -> Box:
        """Where the first element of a selector is, after scrolling to it; in pixels."""
        found = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "if (!e) return null; e.scrollIntoView({block: 'nearest', behavior: 'instant'});"
            "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height] })()"
        )
        if found is None:
            raise RuntimeError(f"no element {selector}")
        return Box(*found)

    def move(self, x: float, y: float) -> None:
        """The mouse goes there; from a little beside, so that it is seen to move."""
        for shift in (-3, 0):
            self._mouse("mouseMoved", x + shift, y, buttons=0)

    def click(self, selector: str) -> None:
        """The middle of an element."""
        self.press(*self.box(selector).at(0.5, 0.5))

    def press(self, x: float, y: float) -> None:
        """A click with the left button."""
        self.move(x, y)
        self._mouse("mousePressed", x, y, button="left", clickCount=1)
        self._mouse("mouseReleased", x, y, button="left", clickCount=1)

    def drag(
        self, start: tuple[float, float], end: tuple[float, float], *, shift: bool = False
    ) -> None:
        """The left button held from one place to another."""
        held = 8 if shift else 0
        self.move(*start)
        self._mouse("mousePressed", *start, button="left", clickCount=1, modifiers=held)
        for step in range(1, 9):
            x, y = (a + (b - a) * step / 8 for a, b in zip(start, end, strict=True))
            self._mouse("mouseMoved", x, y, button="left", modifiers=held)
        self._mouse("mouseReleased", *end, button="left", clickCount=1, modifiers=held)

    def wheel(self, x: float, y: float, delta: float) -> None:
        """The wheel turned at a place; negative is away from the hand."""
        self.move(x, y)
        self._mouse("mouseWheel", x, y, deltaX=0, deltaY=delta, buttons=0)

    def _mouse(self, kind: str, x: float, y: float, **given: Any) -> None:
        pressed = {"buttons": 1 if given.get("button") == "left" else 0, **given}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def type(self, text: str) -> None:
        """Keys of letters and digits, one after the other."""
        for letter in text:
            for kind in ("keyDown", "keyUp"):
                printed = {"text": letter} if kind == "keyDown" else {}
                self.call("Input.dispatchKeyEvent", type=kind, key=letter, **printed)

    def key(self, name: str, code: int) -> None:
        """A key that prints nothing, by its name and its Windows code: Enter 13, Escape 27."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code
            )

    def back(self, steps: int = 1) -> None:
        """The browser's own back button; negative steps go forward."""
        history = self.call("Page.getNavigationHistory")
        entry = history["entries"][history["currentIndex"] - steps]
        self.call("Page.navigateToHistoryEntry", entryId=entry["id"])

    def problems(self) -> list[str]:
        """Everything that the page complained about since it was opened: errors and warnings."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(f"exception: {parameters['exceptionDetails']}")
            elif event.get("method") == "Log.entryAdded":
                entry = parameters["entry"]
                found.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
            elif event.get("method") == "Runtime.consoleAPICalled":
                said = [one.get("value", one.get("description")) for one in parameters["args"]]
                found.append(f"console.{parameters['type']}: {said}")
        return found

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page, in PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def paper(self, path: Path) -> None:
        """The page printed, as a PDF of A4."""
        answer = self.call(
            "Page.printToPDF",
            paperWidth=8.27,
            paperHeight=11.69,
            printBackground=True,
            preferCSSPageSize=True,
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
        try:
            self._session = None
            self.call("Browser.close")
        except (RuntimeError, OSError):
            self._process.kill()
        os.close(self._in)
        os.close(self._out)
        self._process.wait(timeout=30)
