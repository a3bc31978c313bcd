"""The agent's thread: a socket, one controller at a time, and how the agent leaves.

``start`` is the way in for an injected agent and for the cooperative one. An injected agent
leaves at ``detach``, and 60 s after its last controller went: the hook is taken out, the
wrapped functions are torch's again, the socket and its file are gone, its modules are dropped.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from . import PRIVATE_NAME
from .conversation import Conversation, GoneError, Wakeup, next_connection
from .hooks import OptimizerHook
from .main_thread import leave_signals_to_the_job
from .operations import Operations
from .protocol import INTERNAL, RefusalError, decode
from .recorder import Recorder
from .socket_folder import Listener, candidates, usable_folder
from .steps import StepClock

ABANDONED_S = 60.0
_LAST_STEP_S = 600.0
_TRIM_BELOW_BYTES = 4 << 30

_agent: Agent | None = None


def start(
    *,
    injected: bool = False,
    page: tuple[int, int] | None = None,
    directory: str | None = None,
) -> Agent:
    """Start the agent of this process, or return the one that runs.

    ``page``: address and size of the memory through which it came in, unmapped once the
    calling thread has ended. ``directory``: of the socket, instead of the usual folders.
    Raises RefusalError if no folder can hold the socket.
    """
    global _agent
    agent = _agent
    if agent is None or agent.gone or agent.pid != os.getpid():
        agent = _agent = Agent(StepClock(watch_round=injected), injected=injected)
    if page is not None:
        agent.pages.append((page[0], page[1], threading.get_native_id()))
    try:
        agent.open(directory)
    except BaseException:
        agent.give_up()
        raise
    return agent


def running() -> Agent | None:
    """The agent of this process, if there is one; it may be ``gone``."""
    return _agent


def prepare() -> Agent:
    """The agent of this process without thread and socket: they come with ``Agent.open``."""
    global _agent
    if _agent is None:
        _agent = Agent(StepClock(), injected=False)
    return _agent


def start_over_in_child() -> None:
    """After a fork: the agent belongs to the parent, the hook that was copied to a new one."""
    global _agent
    old, _agent = _agent, None
    if old is None:
        return
    old.after_fork_in_child()
    new = prepare()
    if old.hook.active and old.hook.remove(0.0):  # not at once only if a hook itself has forked
        new.hook.install_now()


class Agent:
    """One agent: a clock, a hook, operations; with ``open`` also a thread and a socket."""

    def __init__(self, clock: StepClock, *, injected: bool) -> None:
        self.pid = os.getpid()
        self.gone = False
        self.pages: list[tuple[int, int, int]] = []
        self.clock = clock
        self.hook = OptimizerHook(clock)
        self._injected = injected
        self._opening = threading.Lock()
        self._listener: Listener | None = None
        self._wakeup: Wakeup | None = None
        self._recorder: Recorder | None = None
        self._conversation: Conversation | None = None
        self._modules = {
            name: module
            for name, module in list(sys.modules.items())
            if name == PRIVATE_NAME or name.startswith(PRIVATE_NAME + ".")
        }

    def open(self, directory: str | None = None) -> None:
        """Make the socket and start the thread, once."""
        with self._opening:
            if self._listener is None:
                self._open(usable_folder([directory] if directory else candidates()))
            else:
                self._wake()

    def _open(self, folder: str) -> None:
        self._listener = Listener(folder)
        self._wakeup = Wakeup()
        self._recorder = Recorder(self.clock, self.hook, self._wakeup.set)
        atexit.register(self._at_exit)
        threading.Thread(target=self._run, name="diagnose-agent", daemon=True).start()

    def give_up(self) -> None:
        """It could not be opened: an injected one leaves at once."""
        if self._injected:
            self.gone = True
            self._drop_modules()

    @property
    def socket_path(self) -> str:
        """Where it listens; empty before ``open``."""
        return "" if self._listener is None else self._listener.path

    def after_fork_in_child(self) -> None:
        """Let go of what belongs to the parent; the child may open an agent of its own."""
        with suppress(OSError):
            if self._listener is not None:
                self._listener.socket.close()
            if self._conversation is not None:
                self._conversation.drop()
            if self._wakeup is not None:
                self._wakeup.close()

    # ---- the agent's thread ----

    def _run(self) -> None:
        with suppress(Exception):
            leave_signals_to_the_job()
            self._unmap_pages()
            self._serve()
        with suppress(Exception):
            self._leave()

    def _serve(self) -> None:
        listener, recorder, wakeup = self._listener, self._recorder, self._wakeup
        assert listener is not None
        assert recorder is not None
        assert wakeup is not None
        operations = Operations(self.clock, self.hook, recorder, injected=self._injected)
        timeout_s = ABANDONED_S if self._injected else None
        while True:
            connection, abandoned = next_connection(listener, wakeup, timeout_s)
            self._unmap_pages()
            if abandoned:
                return
            if connection is None:
                continue
            conversation = self._conversation = Conversation(connection, listener, wakeup)
            try:
                if not self._converse(conversation, operations):
                    return
            finally:
                recorder.disarm("the controller went away")
                self._conversation = None
                conversation.close()

    def _converse(self, conversation: Conversation, operations: Operations) -> bool:
        """Serve until the controller goes (True) or wants the agent gone (False)."""
        while True:
            try:
                line = conversation.request()
            except GoneError:
                return True
            except RefusalError as refusal:  # a line without end: nothing after it can be read
                with suppress(GoneError):
                    conversation.reply(refusal.reply())
                return True
            leaving = False
            try:
                reply = self._answer(line, conversation, operations)
                leaving = reply.pop("leaving", False)
                conversation.reply(reply)
            except GoneError:
                return not leaving
            if leaving:
                return False

    def _answer(
        self, line: bytes, conversation: Conversation, operations: Operations
    ) -> dict[str, Any]:
        try:
            request = decode(line)
            reply = operations.perform(request, conversation)
            if request["op"] == "detach" and self._injected:
                reply["leaving"] = True
            return reply
        except GoneError:
            raise
        except RefusalError as refusal:
            return refusal.reply()
        except Exception as error:  # a defect is reported, and the agent lives on
            return RefusalError(INTERNAL, f"{type(error).__name__}: {str(error)[:200]}").reply()

    def _leave(self) -> None:
        self.gone = True
        if self._recorder is not None:
            self._recorder.disarm("the agent is leaving")
        if self._listener is not None:
            self._listener.close()
        if self._wakeup is not None:
            self._wakeup.close()
        atexit.unregister(self._at_exit)
        # A thread may be inside the hooks for long (a step that contains the whole training):
        # the thread stays, asleep, until they can be taken out.
        end = time.monotonic() + _LAST_STEP_S
        while self._recorder is not None and not self._recorder.ended:
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        pause_s = 0.1
        while not self.hook.remove(2.0):
            time.sleep(pause_s)
            pause_s = min(5.0, 2 * pause_s)
        self._drop_modules()
        _give_back_memory()

    def _drop_modules(self) -> None:
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    def _unmap_pages(self) -> None:
        """Give back the memory of the way in, once the thread that ran in it has ended."""
        while self.pages:
            address, size, thread = self.pages.pop()
            end = time.monotonic() + 5
            while os.path.exists(f"/proc/self/task/{thread}"):
                if thread == threading.get_native_id() or time.monotonic() > end:
                    return
                time.sleep(0.001)
            ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))

    # ---- other threads ----

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()

    def _at_exit(self) -> None:
        """The interpreter ends: nothing may record any more, and the file of the socket goes."""
        if os.getpid() != self.pid:
            return
        with suppress(Exception):
            if self._recorder is not None:
                self._recorder.at_exit()
        if self._listener is not None:
            self._listener.remove_file()


def _give_back_memory() -> None:
    """Return freed pages to the system, in a heap small enough for that to be instant."""
    with suppress(Exception):
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if resident < _TRIM_BELOW_BYTES:
            ctypes.CDLL(None).malloc_trim(0)
