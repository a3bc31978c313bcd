"""Speed and memory, side by side with HolisticTraceAnalysis. Run with ``make bench``."""
