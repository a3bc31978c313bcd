"""Every error this package raises on purpose.

::

    DiagnoseError                  something a person can act on
    ├── UsageError                 the call or the command line is wrong
    ├── UnavailableError           this trace does not hold what the analysis needs
    ├── ExtensionError             a module of the package breaks its contract
    ├── RecordingError             a window could not be recorded
    │   ├── OutputError            the folder for the recording cannot be used
    │   └── AttachError            a process could not be asked to record
    │       ├── ProcessGoneError   there is no such process, or it ended meanwhile
    │       ├── NoRanksError       no training process was found
    │       ├── OtherUserError     it belongs to somebody else
    │       ├── PtraceRefusedError the system forbids it (Yama, container, seccomp)
    │       ├── ProcessorError     injection is not built for this processor
    │       ├── NotPythonError     no CPython that this version knows runs in it
    │       ├── TorchMissingError  PyTorch is not loaded in it
    │       ├── ProfilerBusyError  the job's own profiler is at work, and wins
    │       ├── StuckError         its main thread does not come back to Python
    │       ├── NoStepsError       no optimizer step was seen
    │       ├── WindowLostError    the window ended early or its trace was lost
    │       └── AttachTimeoutError it did not answer in time
    └── InputError                 the input cannot be used
        ├── InputNotFoundError     nothing is there
        ├── EmptyInputError        a file without a byte
        ├── NotATraceError         readable, but not a trace or recording
        ├── DamagedInputError      damaged so badly that nothing could be read
        ├── InternalReadError      a defect of this package came up while it was read
        ├── DecompressionBombError unpacks to endless text without an event
        └── InputTooLargeError     would not fit into memory

An error is for people: the message says what was seen and where (file, byte,
field), the hint says what to do next. ``code`` is for scripts and never
changes. Damage that leaves something readable is no error but a ``Note`` on
the trace.
"""

from __future__ import annotations

EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 3


class DiagnoseError(Exception):
    """Base of all errors. ``str(error)`` is one sentence; ``hint`` the next step."""

    code = "error"
    exit_status = EXIT_USAGE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries when ranks are read in parallel.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[DiagnoseError], message: str, hint: str) -> DiagnoseError:
    return kind(message, hint=hint)


class UsageError(DiagnoseError):
    """The call or the command line asks for something that does not exist."""

    code = "usage"


class UnavailableError(DiagnoseError):
    """This trace does not hold what the analysis needs; the hint says how to record it."""

    code = "unavailable"


class ExtensionError(DiagnoseError):
    """A reader, analyzer, reporter or verb lacks what discovery asks of it."""

    code = "extension"
    exit_status = EXIT_INTERNAL


class InputError(DiagnoseError):
    """The input cannot be used."""

    code = "input"


class InputNotFoundError(InputError):
    """No file, folder or match is there."""

    code = "not-found"


class EmptyInputError(InputError):
    """The file holds no byte."""

    code = "empty-file"


class NotATraceError(InputError):
    """The file can be read, but holds neither a trace nor a recording."""

    code = "not-a-trace"


class DamagedInputError(InputError):
    """The file is damaged and not one event could be read."""

    code = "truncated"


class InternalReadError(InputError):
    """Reading the file failed for a reason that is a defect of this package."""

    code = "internal"
    exit_status = EXIT_INTERNAL


class DecompressionBombError(InputError):
    """The file unpacks to far more text than a trace would, and no event is in it."""

    code = "bomb"


class InputTooLargeError(InputError):
    """The columns would exceed the memory limit."""

    code = "too-large"


class RecordingError(DiagnoseError):
    """A window could not be recorded; the job goes on as before."""

    code = "recording"


class OutputError(RecordingError):
    """The folder for the recording cannot be written, or is not empty."""

    code = "output"


class AttachError(RecordingError):
    """A process could not be asked to record. Says which (pid, rank) and the remedy."""

    code = "attach"


class ProcessGoneError(AttachError):
    """There is no such process, or it ended meanwhile."""

    code = "no-such-process"


class NoRanksError(AttachError):
    """No training process was found here."""

    code = "no-ranks"


class OtherUserError(AttachError):
    """The process belongs to another user, and this one may not trace it."""

    code = "other-user"


class PtraceRefusedError(AttachError):
    """The system forbids tracing: Yama's scope, a container, seccomp."""

    code = "ptrace-refused"


class ProcessorError(AttachError):
    """Injection is not built for this processor."""

    code = "processor"


class NotPythonError(AttachError):
    """No CPython that this version can enter runs in the process."""

    code = "not-python"


class TorchMissingError(AttachError):
    """PyTorch is not loaded in the process."""

    code = "torch-missing"


class ProfilerBusyError(AttachError):
    """The job's own profiler is at work; it always wins."""

    code = "profiler-busy"


class StuckError(AttachError):
    """The main thread does not come back to Python: blocked in native code, perhaps a hang."""

    code = "main-thread-stuck"


class NoStepsError(AttachError):
    """No optimizer step was seen in the time allowed."""

    code = "no-steps"


class WindowLostError(AttachError):
    """The window ended early, or its trace was lost to another profiler."""

    code = "window-lost"


class AttachTimeoutError(AttachError):
    """The process did not answer in time."""

    code = "timeout"
