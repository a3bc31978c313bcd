"""Union, overlap and exposed time of two sets of intervals with this project's functions."""

import json
import sys
import time

import numpy as np

from diagnose.intervals import Intervals, intersection_length, union_length


def main() -> None:
    """Print the three lengths and the CPU seconds of computing them."""
    arrays = np.load(sys.argv[1])
    compute = Intervals(arrays["compute_start"], arrays["compute_end"])
    communication = Intervals(arrays["communication_start"], arrays["communication_end"])
    begin = time.process_time()
    union = union_length(*communication)
    overlapped = intersection_length(compute, communication)
    cpu_s = time.process_time() - begin
    answer = {"union": union, "overlapped": overlapped, "exposed": union - overlapped}
    print(json.dumps({"cpu_s": cpu_s, "answer": answer}))


if __name__ == "__main__":
    main()
