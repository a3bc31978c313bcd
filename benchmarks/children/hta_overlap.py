"""HolisticTraceAnalysis (either release): load, then overlap of each rank."""

import json
import logging
import sys
import warnings


def main() -> None:
    """Print the overlap of each rank."""
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
    table = analysis.get_comm_comp_overlap(visualize=False)
    print(json.dumps({"overlap_pct": table["comp_comm_overlap_pctg"].tolist()}))


if __name__ == "__main__":
    main()
