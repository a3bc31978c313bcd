"""The user's functions around an operator."""

from __future__ import annotations

from diagnose.analyzers.hazards.stacks import stack
from tests.builder import TraceBuilder, build_trace


def test_functions_of_the_user_innermost_first() -> None:
    for shift in (0, 1000):  # another trace is another answer
        builder = TraceBuilder()
        for name, start, duration in (
            ("train.py(1): <module>", 0, 500),
            ("/lib/site-packages/x/y.py(3): call", 10, 400),
            ("torch/nn/modules/module.py(1): _call_impl", 20, 300),
            ("src/model.py(7): forward", 30, 200),
            ("nn.Module: Net_0", 31, 190),
            ("<built-in method add of Tensor object>", 40, 100),
            ("src/model.py(40): over by then", 35, 4),
            ("src/model.py(50): later", 60, 100),
        ):
            builder.event("python_function", name, start + shift, duration)
        builder.event("python_function", "other.py(1): thread", shift, 500, tid=99)
        builder.operator("aten::add", 50 + shift, 5)
        builder.operator("aten::backward", 50 + shift, 5, thread=77)
        trace = build_trace(builder)
        names = trace.host_ops.texts("name")
        expected = ("src/model.py(7): forward", "train.py(1): <module>")
        assert stack(trace, names.index("aten::add")) == expected
        assert stack(trace, names.index("aten::backward")) == ()


def test_no_stacks() -> None:
    builder = TraceBuilder()
    builder.operator("aten::add", 0, 5)
    assert stack(build_trace(builder), 0) == ()
