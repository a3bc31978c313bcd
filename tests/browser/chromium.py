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
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ANSWER_S = 60.0


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
