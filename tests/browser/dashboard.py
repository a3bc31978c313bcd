"""A dashboard that runs, as a process of its own, and the tab in which it is looked at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.browser.chromium import Chromium
from tests.builder import TraceBuilder

PAGES = ("", "timeline", "overlap", "contention", "ranks", "power", "findings", "compare")
_START_S = 60.0
_PLOT = "document.querySelector('#timeline .js-plotly-plot')"
_DRAWN = (
    "document.querySelector('#page > *') && !document.getElementById('loading-bar') && "
    "[...document.querySelectorAll('.js-plotly-plot')].every(p => p.querySelector('.main-svg'))"
)


class Server:
    """``python -m dashboard`` on a free port. Stop it: it is a process."""

    def __init__(self, root: Path, paths: Sequence[Path | str], *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "dashboard",
            "--port",
            "0",
            *options,
            "--",
            *map(str, paths),
        ]
        self._process = subprocess.Popen(
            command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )
        self.said: list[str] = []
        """What it wrote to its standard error, where failures of pages are told."""
        assert self._process.stdout is not None
        late = threading.Timer(_START_S, self._process.kill)
        late.start()
        printed = self._process.stdout.readline()
        late.cancel()
        found = re.search(r"(http://\S+)/\?token=(\S+)", printed)
        if found is None:
            self._process.kill()
            raise RuntimeError(f"no address: {printed!r} {self._process.communicate()[1]}")
        self.base, self.token = found.groups()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self.said += iter(self._process.stderr.readline, "")

    def stop(self) -> None:
        """End it as a person does who presses Ctrl-C."""
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=20)
        self._listener.join(timeout=20)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Tab:
    """The browser's page on a server, as somebody sees it who comes for the first time."""

    def __init__(self, browser: Chromium, server: Server) -> None:
        self.browser, self.server = browser, server

    def open(
        self, path: str = "", *, dark: bool = False, width: int = 1400, height: int = 900
    ) -> None:
        """An address of the server (what follows the slash), with nothing remembered."""
        self.browser.call("Storage.clearDataForOrigin", origin=self.server.base, storageTypes="all")
        joined = "&" if "?" in path else "?"
        self.visit(
            f"{path}{joined}token={self.server.token}", dark=dark, width=width, height=height
        )

    def visit(self, path: str, *, dark: bool = False, width: int = 1400, height: int = 900) -> None:
        """An address, with the cookie and the choices from before."""
        self.browser.look(width=width, height=height, dark=dark)
        self.browser.open(f"{self.server.base}/{path}")
        self.settle()

    def settle(self) -> None:
        """Until the page is drawn and asks for nothing."""
        self.browser.wait_for(_DRAWN)
        self.browser.settle()
        self.browser.wait_for(_DRAWN)

    @property
    def page(self) -> str:
        """Which page the address names."""
        path: str = self.browser.evaluate("location.pathname")
        return path.strip("/")

    @property
    def href(self) -> str:
        """Path and parameters of the address, without the first slash."""
        found: str = self.browser.evaluate("location.pathname + location.search")
        return found.lstrip("/")

    @property
    def asked(self) -> dict[str, str]:
        """The parameters of the address."""
        search = urlsplit(self.browser.evaluate("location.href")).query
        return {key: values[-1] for key, values in parse_qs(search).items()}

    @property
    def window(self) -> tuple[int, int]:
        """The stretch of time that the address names, in nanoseconds."""
        asked = self.asked
        return int(asked["from"]), int(asked["to"])

    @property
    def axis(self) -> list[float]:
        """The range of the timeline's axis, in its own unit."""
        found: list[float] = self.browser.evaluate(f"{_PLOT}._fullLayout.xaxis.range")
        return found

    def place(self, share: float, lane: str | None = None) -> tuple[float, float]:
        """Where a share of the axis lies in the window, at the height of a lane's label."""
        left, width = self.browser.evaluate(
            f"(() => {{ const p = {_PLOT}, x = p._fullLayout.xaxis;"
            "return [p.getBoundingClientRect().left + x._offset, x._length] })()"
        )
        top = self.browser.evaluate(
            "(() => { const all = [...document.querySelectorAll('#lane-labels > *')];"
            f"const e = all.find(one => {json.dumps(lane)} === null || "
            f"one.title === {json.dumps(lane)});"
            "const r = e.getBoundingClientRect(); return r.top + r.height / 2 })()"
        )
        return left + share * width, top

    def picture(self) -> Any:
        """What the timeline shows, nothing hovered over: bars, names, frames, the axis."""
        self.browser.move(2, 2)
        self.browser.wait_for("!document.querySelector('#timeline .hoverlayer text')")
        return self.browser.evaluate(
            f"(() => {{ const p = {_PLOT};"
            "const bars = p.data.map(t => [t.name, t.base, t.x, t.y, t.width, t.customdata]);"
            "const words = [...p.querySelectorAll('text')].map(t => t.textContent);"
            "return JSON.stringify([bars, words, p._fullLayout.xaxis.range, p.layout.shapes]) })()"
        )

    def text(self, selector: str) -> str:
        """The text of an element; empty where there is none."""
        found: str = self.browser.evaluate(
            f"(document.querySelector({json.dumps(selector)}) || {{}}).textContent || ''"
        )
        return found

    def count(self, selector: str) -> int:
        """How many elements there are."""
        found: int = self.browser.evaluate(
            f"document.querySelectorAll({json.dumps(selector)}).length"
        )
        return found

    def strangers(self) -> list[str]:
        """Addresses that were asked for outside of the server; what is inline is none."""
        inside = (f"{self.server.base}/", "data:", "blob:")
        return [one for one in self.browser.requests() if not one.startswith(inside)]


def known(target: Path) -> Path:
    """One rank of which all is known, in microseconds from its first event.

    =========  =========  ========
    stream 7   gemm_a     100-200
    stream 7   gemm_b     300-400
    stream 20  all-reduce 350-600
    stream 7   gemm_c     700-900
    =========  =========  ========
    """
    target.mkdir()
    builder = TraceBuilder(rank=0, world_size=1).step(1, 0, 500).step(2, 500, 500)
    operator = builder.operator("aten::mm", 5, 20)
    builder.kernel("gemm_a", 100, 100, launch=10, parent=operator)
    builder.kernel("gemm_b", 300, 100, launch=30)
    builder.collective("allreduce", 350, 250, launch=40)
    builder.kernel("gemm_c", 700, 200, launch=510)
    builder.write(target)
    return target
