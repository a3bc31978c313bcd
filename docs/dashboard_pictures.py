"""Takes the pictures of the dashboard in docs/dashboard/: the real one, in Chromium.

python docs/dashboard_pictures.py [FOLDER]

They are WebP, which the browser itself writes and which keeps each below 200 KB.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import Chromium, find  # noqa: E402 - the root is not installed
from tests.browser.dashboard import Server, Tab  # noqa: E402

TARGET = ROOT / "docs/dashboard"
RECORDINGS = ("straggler", "healthy", "host_sync")
MOST_BYTES = 200_000
_QUALITY = 88
_WINDOW = "from=80000000&to=128000000"
"""One step of the slow rank, with the collective that waits for it at its end."""


class Picture(NamedTuple):
    """A file, the address that it shows, and how much of the page."""

    name: str
    address: str
    height: int
    dark: bool = False
    width: int = 1280


PICTURES = (
    Picture("timeline", f"timeline?recording=straggler&{_WINDOW}&select=gpu_ops:SELECTED", 720),
    Picture("findings", "findings?recording=straggler", 720),
    Picture("overview", "?recording=straggler", 720),
    Picture("ranks", "ranks?recording=straggler", 720),
    Picture("timeline-dark", "timeline?recording=straggler", 720, dark=True),
)


@contextmanager
def dashboard() -> Iterator[Tab]:
    """A tab on a dashboard of the shipped recordings. RuntimeError without a browser."""
    program = find()
    if program is None:
        raise RuntimeError("no Chromium: install it, or name it in CHROMIUM=...")
    server = Server(ROOT, [ROOT / "examples/recordings" / name for name in RECORDINGS])
    try:
        with tempfile.TemporaryDirectory() as profile:
            browser = Chromium(program, Path(profile))
            try:
                yield Tab(browser, server)
            finally:
                browser.close()
    finally:
        server.stop()


def waiting_collective(tab: Tab) -> str:
    """The operation to select: the first all-reduce in the window that is found by name."""
    tab.open(f"timeline?recording=straggler&{_WINDOW}&find=ncclDevKernel_AllReduce")
    tab.browser.click("#find-next")
    tab.browser.wait_for("location.search.includes('select=gpu_ops')")
    tab.settle()
    return tab.asked["select"].partition(":")[2]


def take(tab: Tab, picture: Picture, selected: str) -> bytes:
    """What a window of that size shows."""
    address = picture.address.replace("SELECTED", selected)
    tab.open(address, dark=picture.dark, width=picture.width, height=picture.height)
    tab.browser.move(2, 2)
    tab.settle()
    said = tab.browser.problems()
    if said:
        raise RuntimeError(f"{picture.name}: {said} {tab.server.said}")
    answer = tab.browser.call("Page.captureScreenshot", format="webp", quality=_QUALITY)
    return base64.b64decode(answer["data"])


def main(target: Path = TARGET) -> None:
    """Take all of them."""
    target.mkdir(parents=True, exist_ok=True)
    with dashboard() as tab:
        selected = waiting_collective(tab)
        for picture in PICTURES:
            taken = take(tab, picture, selected)
            if len(taken) > MOST_BYTES:
                raise RuntimeError(
                    f"{picture.name}: {len(taken):,} bytes, more than {MOST_BYTES:,}"
                )
            (target / f"{picture.name}.webp").write_bytes(taken)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
