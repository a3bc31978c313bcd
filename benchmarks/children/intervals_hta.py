"""The same with HolisticTraceAnalysis: its merging function, then its sweep.

The sweep stands inside ``get_comm_comp_overlap`` (hta/analyzers/
communication_analysis.py, MIT licence), where it cannot be called on arrays, so its
statements are repeated here.
"""

import json
import sys
import time
import warnings

import numpy as np
import pandas as pd
from hta.utils.utils import merge_kernel_intervals


def _overlapped(communication: pd.DataFrame, compute: pd.DataFrame) -> int:
    status = (
        pd.concat(
            [
                communication.melt(var_name="status", value_name="time").replace(
                    {"ts": 1, "end": -1}
                ),
                compute.melt(var_name="status", value_name="time").replace({"ts": 2, "end": -2}),
            ]
        )
        .sort_values(by="time")
        .reset_index(drop=True)
    )
    status["running"] = status["status"].cumsum()
    overlap = status[status["running"].eq(3)]
    shifted = overlap.merge(status.shift(-1).dropna(), left_index=True, right_index=True)
    return int((shifted["time_y"] - shifted["time_x"]).sum())


def main() -> None:
    """Print the three lengths and the CPU seconds of computing them."""
    warnings.simplefilter("ignore")
    arrays = np.load(sys.argv[1])
    frames = []
    for name in ("communication", "compute"):
        start, end = arrays[f"{name}_start"], arrays[f"{name}_end"]
        frames.append(pd.DataFrame({"ts": start, "dur": end - start, "end": end}))
    begin = time.process_time()
    communication, compute = (merge_kernel_intervals(frame) for frame in frames)
    union = int((communication["end"] - communication["ts"]).sum())
    overlapped = _overlapped(communication, compute)
    cpu_s = time.process_time() - begin
    answer = {"union": union, "overlapped": overlapped, "exposed": union - overlapped}
    print(json.dumps({"cpu_s": cpu_s, "answer": answer}))


if __name__ == "__main__":
    main()
