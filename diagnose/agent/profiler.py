"""One torch profile: made with the flags this torch knows, exported safely, freed completely.

It is torch's ``_KinetoProfile``, the documented low-level class: unlike ``profile`` it has no
schedule, no step counter shared with the job's own profiler and no reference cycles.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from contextlib import suppress
from typing import Any

from .garbage import Collections
from .protocol import BAD_REQUEST, OUTPUT, TORCH_MISSING, TRACE_LOST, RefusalError
from .rank import torch_version

DEFAULTS = {
    "shapes": True,
    "stacks": False,
    "memory": False,
    "sync_events": True,
    "all_threads": True,
    "modules": False,
}


def read_options(options: Any) -> dict[str, bool]:
    """The options of a request with their defaults. Raises RefusalError for any other."""
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise RefusalError(BAD_REQUEST, "options must be an object")
    for name, value in options.items():
        if name not in DEFAULTS or not isinstance(value, bool):
            known = ", ".join(DEFAULTS)
            raise RefusalError(BAD_REQUEST, f"options are true or false: {known}")
    return {**DEFAULTS, **options}


def knows_all_threads() -> bool:
    """Whether this torch can record every thread; else only the one that starts it."""
    return "profile_all_threads" in _experimental_flags()


def _experimental_flags() -> str:
    with suppress(Exception):
        kind = sys.modules["torch"]._C._profiler._ExperimentalConfig
        return kind.__init__.__doc__ or ""
    return ""


def require_torch() -> None:
    """Raises RefusalError with ``torch-missing`` unless all of torch that is needed is loaded."""
    needed = ("torch.optim.optimizer", "torch.autograd.profiler", "torch.profiler")
    loaded = [sys.modules.get(name) for name in needed]
    ready = hasattr(loaded[0], "Optimizer") and hasattr(loaded[2], "_KinetoProfile")
    if not ready or not hasattr(sys.modules.get("torch"), "__version__"):
        raise RefusalError(TORCH_MISSING, f"torch is not loaded (completely) in pid {os.getpid()}")
    if not hasattr(loaded[0], "register_optimizer_step_post_hook"):
        raise RefusalError(TORCH_MISSING, f"torch {torch_version()} is too old: 2.1 is needed")


class Profile:
    """A profile that was not started yet. Its methods may raise whatever torch raises.

    ``ignored`` names the options that this torch does not have, or that exclude each other.
    """

    def __init__(self, options: dict[str, bool], metadata: dict[str, Any]) -> None:
        self.ignored: list[str] = []
        kind = sys.modules["torch.profiler"]._KinetoProfile
        all_threads = options["all_threads"]
        if options["memory"] and all_threads:
            # Recording all threads loses the memory events (pytorch#192290).
            all_threads = False
            self.ignored.append("all_threads")
        experimental = self._experimental(options, all_threads)
        arguments: dict[str, Any] = {
            "record_shapes": options["shapes"],
            "with_stack": options["stacks"],
            "profile_memory": options["memory"],
            "with_modules": options["modules"],
        }
        known = inspect.signature(kind.__init__).parameters
        arguments = {name: value for name, value in arguments.items() if name in known}
        if experimental is not None:
            arguments["experimental_config"] = experimental
        self._profile = kind(activities=_activities(), **arguments)
        self._metadata = metadata
        self._collections = Collections()
        for name, value in metadata.items():
            self._add_preset(str(name), json.dumps(value))

    def _experimental(self, options: dict[str, bool], all_threads: bool) -> Any:
        flags = {
            "profile_all_threads": all_threads,
            "enable_cuda_sync_events": options["sync_events"],
            # Skips building Python events, seconds of them; excludes stacks, with a warning.
            "trace_only": not options["stacks"],
        }
        names = {"profile_all_threads": "all_threads", "enable_cuda_sync_events": "sync_events"}
        documented = _experimental_flags()
        known = {name: value for name, value in flags.items() if f"{name}:" in documented}
        self.all_threads = bool(known.get("profile_all_threads"))
        for flag, option in names.items():
            if flags[flag] and flag not in known and option not in self.ignored:
                self.ignored.append(option)
        if not known:
            return None
        return sys.modules["torch"]._C._profiler._ExperimentalConfig(**known)

    def _add_preset(self, name: str, text: str) -> None:
        if hasattr(self._profile, "preset_metadata_json"):
            self._profile.preset_metadata_json(name, text)

    def is_session(self, session: Any) -> bool:
        """Whether this is the autograd profile that is behind ours."""
        return self._profile is not None and session is self._profile.profiler

    def prepare(self) -> None:
        """Get ready, a step early: CUPTI starts and buffers are made here."""
        # What prepare_trace does, without what it does to the job: some versions (2.11) warn on
        # every call, into the job's log; and all import the compiler (0.7 s, 800 modules, a
        # variable of the environment) to ask whether its CUDA graphs are in use. They cannot be
        # where it is not loaded.
        config = sys.modules.get("torch._inductor.config")
        with suppress(AttributeError):  # there is none, or it is just being loaded
            self._profile.has_cudagraphs = config.triton.cudagraphs  # type: ignore[union-attr]
        self._profile.profiler = _session(self._profile)
        try:
            self._profile.profiler._prepare_trace()
        except BaseException:
            self._profile.profiler = None  # to start what is not prepared crashes the process
            raise

    def start(self) -> None:
        """Record from now on."""
        self._profile.start_trace()
        self._collections.watch()

    def add_metadata(self, name: str, value: Any) -> None:
        """Write a value into the trace; while it records."""
        self._profile.add_metadata_json(name, json.dumps(value))

    def stop(self) -> None:
        """Record no more. Synchronises the device, and holds the interpreter for its time."""
        self._collections.leave()
        try:
            self._profile.stop_trace()
        except Exception:
            self._end_session()
            raise

    def _end_session(self) -> None:
        """Where stopping failed half way (CUDA in error): a session that stays crashes at exit."""
        autograd = sys.modules["torch.autograd.profiler"]
        with suppress(Exception):
            session = self._profile.profiler
            if session is not None and session.kineto_results is None:
                session.kineto_results = autograd._disable_profiler()
                autograd._run_on_profiler_stop()

    def export(self, output: Output) -> int:
        """Write the trace; its size in bytes.

        Raises RefusalError with ``trace-lost`` where another profiler took the session
        (exporting then would crash the process), ``output`` where the disk would not take it.
        """
        results = None if self._profile.profiler is None else self._profile.profiler.kineto_results
        if not results or results.trace_start_ns() == 0:
            raise RefusalError(TRACE_LOST, "another profiler took the session; the trace is lost")
        self._profile.export_chrome_trace(output.unfinished)
        return output.finish()

    def release(self) -> None:
        """Free the events now, and not when the job happens to collect its garbage."""
        self._collections.leave()
        profile, self._profile = self._profile, None
        if profile is None:
            return
        with suppress(Exception):
            if profile.profiler is not None:
                profile.profiler.kineto_results = None
                profile.profiler.entered = False
            profile.profiler = None


def _session(profile: Any) -> Any:
    kind = sys.modules["torch.autograd.profiler"].profile
    device = getattr(profile, "use_device", None)
    given = {
        "use_kineto": True,
        "use_cpu": True,
        "use_device": device,
        "activity_filters": getattr(profile, "activity_filters", None) or None,
    }
    parameters = set(inspect.signature(kind.__init__).parameters) - {"self", "enabled"}
    if device is None and _has_cuda(profile.activities):
        given["use_cuda"] = True  # up to torch 2.2 the device is asked for in this way
    parameters -= {"use_cuda"} - set(given)
    arguments = {name: getattr(profile, name) for name in parameters if hasattr(profile, name)}
    arguments.update((name, value) for name, value in given.items() if name in parameters)
    return kind(**arguments)


def _has_cuda(activities: Any) -> bool:
    return any(activity.name == "CUDA" for activity in activities)


def _activities() -> list[Any]:
    kinds = sys.modules["torch.profiler"].ProfilerActivity
    activities = [kinds.CPU]
    for name, module in (("CUDA", "torch.cuda"), ("XPU", "torch.xpu")):
        # Never is_available(): in a process that has not touched the device it would start it.
        device = sys.modules.get(module)
        with suppress(Exception):
            if device is not None and device.is_initialized():
                activities.append(getattr(kinds, name))
                break
    return activities


class Output:
    """A file that appears under its name only when it is whole; until then ``PATH.part``."""

    def __init__(self, path: Any) -> None:
        """Claim the place. Raises RefusalError with ``output`` if it cannot be written."""
        if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
            raise RefusalError(BAD_REQUEST, "a file must be named by an absolute path")
        self.path = path
        self.unfinished = path + ".part"
        try:
            if os.path.lexists(path):
                raise FileExistsError(17, "there is a file of this name already")
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(self.unfinished, flags, 0o600))
        except OSError as error:
            reason = error.strerror or str(error)
            raise RefusalError(OUTPUT, f"{path} cannot be written: {reason}") from None
        self.open = True

    def finish(self) -> int:
        """Give the file its name; its size. Raises RefusalError if the disk did not take it all."""
        try:
            # Kineto does not report a failed write: look whether the end is there.
            with open(self.unfinished, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 64))
                complete = file.read().rstrip().endswith(b"}")
            if not complete:
                raise RefusalError(OUTPUT, f"{self.path} came out incomplete; is the disk full?")
            os.chmod(self.unfinished, 0o600)
            os.rename(self.unfinished, self.path)
        except OSError as error:
            raise RefusalError(OUTPUT, f"{self.path} cannot be written: {error.strerror}") from None
        self.open = False
        return size

    def discard(self) -> None:
        """Leave nothing, unless it was finished."""
        if not self.open:
            return
        self.open = False
        for leftover in (self.unfinished, self.unfinished + ".tmp"):
            with suppress(OSError):
                os.unlink(leftover)
