"""How a session is made on several versions of torch, of which stand-ins have the signatures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.agent.profiler import Profile

Make = Callable[..., Any]


class Activity:
    CPU = SimpleNamespace(name="CPU")
    CUDA = SimpleNamespace(name="CUDA")


class Session:
    """torch.autograd.profiler.profile; what it was made with is in ``made``."""

    made: dict[str, Any]

    def _prepare_trace(self) -> None:
        self.made["prepared"] = True


class Session2_1(Session):  # noqa: N801 - of torch 2.1
    def __init__(
        self, enabled=True, *, use_cuda=False, use_device=None, record_shapes=False,
        use_kineto=False, use_cpu=True, experimental_config=None,
    ):  # fmt: skip
        self.made = {"use_cuda": use_cuda, "use_device": use_device, "use_kineto": use_kineto}


class Session2_11(Session):  # noqa: N801
    def __init__(
        self, enabled=True, *, use_cuda=False, use_device=None, record_shapes=False,
        use_kineto=False, use_cpu=True, experimental_config=None, acc_events=False,
    ):  # fmt: skip
        self.made = {"use_cuda": use_cuda, "use_device": use_device, "use_kineto": use_kineto}


class Kind:
    """torch.profiler._KinetoProfile."""

    device: str | None = None

    def __init__(self, *, activities, record_shapes=False, experimental_config=None):
        self.activities = activities
        self.record_shapes = record_shapes
        self.experimental_config = experimental_config
        self.use_device = self.device if Activity.CUDA in activities else None
        self.profiler = None
        self.has_cudagraphs = False

    def prepare_trace(self):
        raise AssertionError("it warns into the log of the job, and imports the compiler")


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(session: type[Session], *, cuda: bool, device: str | None) -> Any:
        monkeypatch.setattr(Kind, "device", device)
        modules = {
            "torch.cuda": SimpleNamespace(is_initialized=lambda: cuda),
            "torch.profiler": SimpleNamespace(_KinetoProfile=Kind, ProfilerActivity=Activity),
            "torch.autograd.profiler": SimpleNamespace(profile=session),
            "torch": None,
            "torch.xpu": None,
            "torch._inductor.config": None,
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        options = dict.fromkeys(("shapes", "stacks", "memory", "modules", "sync_events"), False)
        return Profile({**options, "all_threads": False}, {})

    return make


@pytest.mark.parametrize(
    ("session", "device", "use_cuda", "use_device"),
    [(Session2_1, None, True, None), (Session2_11, "cuda", False, "cuda")],
)
def test_the_gpu_is_recorded(
    make: Make, session: type[Session], device: str | None, use_cuda: bool, use_device: str | None
) -> None:
    profile = make(session, cuda=True, device=device)
    profile.prepare()
    assert profile._profile.profiler.made == {
        "use_cuda": use_cuda,
        "use_device": use_device,
        "use_kineto": True,
        "prepared": True,
    }


@pytest.mark.parametrize("session", [Session2_1, Session2_11])
def test_no_gpu_is_asked_for_where_cuda_does_not_run(make: Make, session: type[Session]) -> None:
    profile = make(session, cuda=False, device="cuda")
    profile.prepare()
    made = profile._profile.profiler.made
    assert (made["use_cuda"], made["use_device"]) == (False, None)


def test_graphs_of_the_compiler_are_known_without_torchs_own_way(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = make(Session2_11, cuda=True, device="cuda")
    config = SimpleNamespace(triton=SimpleNamespace(cudagraphs=True))
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    profile.prepare()
    assert profile._profile.has_cudagraphs is True


def test_what_could_not_be_prepared_is_never_started(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start such a session crashes the process."""

    def broken(_session: Session) -> None:
        raise RuntimeError("CUPTI")

    monkeypatch.setattr(Session2_11, "_prepare_trace", broken, raising=False)
    profile = make(Session2_11, cuda=True, device="cuda")
    with pytest.raises(RuntimeError, match="CUPTI"):
        profile.prepare()
    assert profile._profile.profiler is None
