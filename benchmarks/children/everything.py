"""This project at full detail: load all events, then overlap by step as a DataFrame."""

import json
import sys

import diagnose


def main() -> None:
    """Print the number of steps and the overlap of each rank over the whole window."""
    recording = diagnose.load(sys.argv[1:])
    steps = recording.overlap(by="step")
    ranks = recording.overlap(by="rank")
    print(json.dumps({"steps": len(steps), "overlap_pct": ranks["overlap_pct"].tolist()}))


if __name__ == "__main__":
    main()
