"""Keeps recordings of the gallery as test data, without what tells of the machine.

    python -m benchmarks.gpu.hazards.keep DIR tests/data/hazards

``DIR/NAME/{racy,repaired}`` become ``NAME.racy`` and ``NAME.repaired``; what was planted and what
came out of each program is put together in ``planted.json``. Left out of the traces are the
Python functions inside of the recorder, nothing else; times and layout are not touched. The
answers of torch's sanitizer may lie elsewhere (``--sanitizer DIR``, first come first served). The
same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

TWINS = ("racy", "repaired")
TRACE = "rank00000.trace.json.gz"
EXECUTION_TRACE = "rank00000.execution_trace.json.gz"
ENVIRONMENT = "rank00000.env.json"
RECORDER = re.compile(r"hazards/recorder\.py\(\d+\): (?:start|stop)$")
UUID = "GPU-00000000-0000-0000-0000-000000000000"
PATHS = (
    (re.compile(r"(?:/[\w.+-]+)*/(?:site|dist)-packages/"), "site-packages/"),
    (re.compile(r"(?<![\w.+-])(?:/[\w.+-]+)+/hazards/(?=\w+(?:/\w+)*\.py)"), "hazards/"),
    (re.compile(r"(?<=\")(?:/[\w.+-]+)+/(rank\d+\.trace\.json)(?:\.part)?(?=\")"), r"\1"),
)
"""How paths of the machine read in what is kept."""
FACTS = (
    "kind", "first", "second", "missing", "recorded", "distributed", "racy_steps",
    "recorded_steps", "torch",
)  # fmt: skip


def main() -> None:
    """Write what is kept of each program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sanitizer", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    sanitized = [*arguments.sanitizer, arguments.folder]
    arguments.out.mkdir(parents=True, exist_ok=True)
    answers = {}
    for result in sorted(arguments.folder.glob("*/result.json")):
        name = result.parent.name
        for twin in TWINS:
            keep(result.parent / twin, arguments.out / f"{name}.{twin}", sanitized)
        answers[name] = planted(json.loads(result.read_text()), arguments.out)
    text = json.dumps(answers, indent=1, sort_keys=True)
    (arguments.out / "planted.json").write_text(text + "\n")


def keep(folder: Path, out: Path, sanitized: Iterable[Path]) -> None:
    """Keep one recording; raises OSError where a part of it is missing."""
    out.mkdir(exist_ok=True)
    for name, change in ((TRACE, slim), (EXECUTION_TRACE, str)):
        text = gzip.decompress((folder / name).read_bytes()).decode()
        content = scrubbed(change(text)).encode()
        (out / name).write_bytes(gzip.compress(content, 9, mtime=0))
    environment = without_machine(json.loads((folder / ENVIRONMENT).read_text()))
    (out / ENVIRONMENT).write_text(json.dumps(environment, indent=1) + "\n")
    program, twin = folder.parent.name, folder.name
    places = [place / program / twin / "sanitizer.json" for place in sanitized]
    shutil.copyfile(next((one for one in places if one.exists()), places[-1]), out / places[0].name)


def slim(text: str) -> str:
    """A trace in Kineto's own layout without the Python functions inside of the recorder."""
    events = list(_events(text, text.index("[", text.index('"traceEvents"')) + 1))
    parents: dict[int, int | None] = {}
    inside: dict[int, bool] = {}
    for event, _ in events:
        if event.get("cat") == "python_function":
            number = event["args"]["Python id"]
            parents[number] = event["args"]["Python parent id"]
            inside[number] = bool(RECORDER.search(event["name"]))

    def dropped(event: Event) -> bool:
        if event.get("cat") != "python_function":
            return False
        above = parents[event["args"]["Python id"]]
        while above is not None and above in parents:
            if inside[above]:
                return True
            above = parents[above]
        return False

    return thinned(text, dropped)


def thinned(text: str, dropped: Callable[[Event], bool]) -> str:
    """A trace in Kineto's own layout without some of its events."""
    begin = text.index("[", text.index('"traceEvents"')) + 1
    events = list(_events(text, begin))
    kept = [span for event, span in events if not dropped(event)]
    end = events[-1][1].stop
    return text[:begin] + ",".join(text[span] for span in kept) + text[end:]


def _events(text: str, begin: int) -> Iterator[tuple[Event, slice]]:
    """Events with where their text stands, the white space before it included."""
    decode = json.JSONDecoder().raw_decode
    while True:
        start = re.compile(r"\s*").match(text, begin).end()  # type: ignore[union-attr]
        event, end = decode(text, start)
        yield event, slice(begin, end)
        after = re.compile(r"\s*").match(text, end).end()  # type: ignore[union-attr]
        if text[after] != ",":
            return
        begin = after + 1


def scrubbed(text: str) -> str:
    """The text without paths of the machine it was recorded on."""
    for pattern, instead in PATHS:
        text = pattern.sub(instead, text)
    return text


def without_machine(environment: dict[str, Any]) -> dict[str, Any]:
    """The environment without which GPU it was, and without variables that hold a path."""
    variables = {key: value for key, value in environment["env"].items() if "/" not in value}
    gpu = environment["gpu"] and {**environment["gpu"], "uuid": UUID}
    return {**environment, "gpu": gpu, "env": variables}


def planted(result: dict[str, Any], out: Path) -> dict[str, Any]:
    """What is wrong in the racy twin, and how many elements came out wrong in recorded steps."""
    facts = {key: result[key] for key in FACTS}
    facts["sanitizer_expected"] = result["sanitizer"]
    facts["elements"] = result["racy"]["elements"]
    facts["wrong_elements"], facts["sanitizer_races"] = {}, {}
    for twin in TWINS:
        wrong = result[twin]["wrong_elements_per_step"]
        facts["wrong_elements"][twin] = [wrong[number] for number in result["recorded_steps"]]
        said = json.loads((out / f"{result['program']}.{twin}" / "sanitizer.json").read_text())
        facts["sanitizer_races"][twin] = said["races"]
    return facts


if __name__ == "__main__":
    main()
