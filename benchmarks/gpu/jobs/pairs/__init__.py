"""The jobs behind ``python -m benchmarks.gpu.pairs``: the same work with and without a fault."""
