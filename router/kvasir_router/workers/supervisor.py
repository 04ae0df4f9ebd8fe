"""The parent of a router's processes: starts them, starts them again, and ends with them.

It serves nobody and has no event loop, so that it may fork at any time, and its children have all
that they need in memory. The sockets are its own: a worker's listening socket outlives the worker,
and who connects meanwhile waits for the next one.
"""

import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from types import FrameType

import structlog

from kvasir_router.workers.child import INDEX, become
from kvasir_router.workers.control_channel import END, GO, LEAVING, READY, TAKEN_OVER
from kvasir_router.workers.shared_state import Shared

_log = structlog.get_logger("kvasir_router.workers")

FIRST_BACKOFF, MAX_BACKOFF = 0.1, 5.0
"""Seconds before a process is started again, doubled each time that it ends soon."""
SETTLED_SECONDS = 10.0
"""A process that lived as long has not ended soon."""
HANG_SECONDS = 15.0
"""Without a turn of its loop, a process that serves is taken for hung."""
START_HANG_SECONDS = 60.0
"""And one that does not serve yet: a busy machine is slow at starting processes."""
STOP_MARGIN_SECONDS = 10.0
"""Beyond the drain timeout, before what is left is killed."""
_LOOK_SECONDS = 1.0
_LATE_SECONDS = 3.0
"""Between two looks, after which it is the supervisor, and perhaps all, that stood still."""


@dataclass(eq=False)
class Child:
    """One process."""

    slot: int
    """Which worker, or INDEX."""
    pid: int
    pidfd: int
    control: socket.socket
    column: int
    """Column of the load table."""
    started: float
    is_ready: bool = False
    """It serves, and so its loop should turn."""
    is_leaving: bool = False
    """Another one may take its slot."""

    def leaves_to(self, other: "Child") -> bool:
        """Return True if the other one has its slot now."""
        return self.is_leaving and self.slot == other.slot and self is not other


@dataclass
class Slot:
    """A place that is to have a process."""

    listener: socket.socket
    start_at: float = 0.0
    """Monotonic; 0 = it has one."""
    backoff: float = FIRST_BACKOFF
    was_ready: bool = False


@dataclass
class Supervisor:
    """`run` until told to stop."""

    shared: Shared
    slots: dict[int, Slot]
    children: list[Child] = field(default_factory=list)
    _signals: int = 0
    _failed: int = 0
    """The exit status of a process that could not begin."""
    _looked: float = field(default_factory=time.monotonic)
    _awake_since: float = field(default_factory=time.monotonic)

    def run(self) -> int:
        """The exit status: 0 when asked to stop; when a process cannot begin, that one's."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        while not self._signals and not self._failed:
            self._start_due()
            self._wait(reader, self._next_start())
            self._kill_silent()
        return self._stop(reader)

    # The end

    def _stop(self, reader: int) -> int:
        settings = self.shared.settings
        patience = settings.pre_stop_delay + settings.drain_timeout + STOP_MARGIN_SECONDS
        deadline = time.monotonic() + patience
        for slot in self.slots.values():
            slot.listener.close()  # the workers close theirs when they are done
        signals = self._signals
        self._say(GO, self.children)
        while self._workers() and not self._failed and self._signals == signals:
            if time.monotonic() > deadline:
                _log.error("workers do not stop: they are killed")
                break
            self._wait(reader, deadline)
        self._kill(self._workers())
        self._say(END, self.children)
        deadline = time.monotonic() + STOP_MARGIN_SECONDS
        while self.children and time.monotonic() < deadline and not self._failed:
            self._wait(reader, deadline)
        self._kill(self.children)
        _log.info("stopped")
        return self._failed

    def _workers(self) -> list[Child]:
        return [child for child in self.children if child.slot != INDEX]

    def _kill(self, children: list[Child]) -> None:
        for child in list(children):
            os.kill(child.pid, signal.SIGKILL)
            self._bury(child)

    def _say(self, word: bytes, children: list[Child]) -> None:
        for child in children:
            try:
                child.control.send(word)
            except OSError:
                continue  # it has ended

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    # What happens

    def _wait(self, reader: int, until: float) -> None:
        """For a signal, an end, a word, or the time."""
        poller = select.poll()
        poller.register(reader, select.POLLIN)
        found = {}
        for child in self.children:
            for fd in (child.pidfd, child.control.fileno()):
                poller.register(fd, select.POLLIN)
                found[fd] = child
        timeout = max(0.0, min(until - time.monotonic(), 3600.0))
        ended = []
        for fd, _ in poller.poll(timeout * 1000 + 1):
            if fd == reader:
                os.read(reader, 64)
            elif fd == found[fd].pidfd:
                ended.append(found[fd])
            else:
                self._heard(found[fd])
        for child in ended:
            self._ended(child)
        self._reap_strangers()

    def _heard(self, child: Child) -> None:
        try:
            words = child.control.recv(64)
        except OSError:
            words = b""
        if not words:
            return  # its end is told by its pidfd
        if READY in words:
            child.is_ready = True
            self.slots[child.slot].was_ready = True
            self._say(TAKEN_OVER, [each for each in self.children if each.leaves_to(child)])
        if LEAVING in words and not self._signals:
            child.is_leaving = True
            self.slots[child.slot].start_at = time.monotonic()

    def _ended(self, child: Child) -> None:
        status = self._bury(child)
        slot = self.slots[child.slot]
        if self._signals or child.is_leaving:
            return
        now = time.monotonic()
        if not slot.was_ready and status > 0:
            self._failed = status  # it has said why
            return
        slot.backoff = (
            FIRST_BACKOFF
            if now - child.started > SETTLED_SECONDS
            else min(2 * slot.backoff, MAX_BACKOFF)
        )
        slot.start_at = now + slot.backoff / 2
        _log.error(
            "a process ended and is started again",
            process=_name(child.slot),
            status=status,
            seconds=round(slot.backoff / 2, 2),
        )

    def _bury(self, child: Child) -> int:
        """Take it off all lists; returns its exit status, negative for a signal."""
        _, status = os.waitpid(child.pid, 0)
        os.close(child.pidfd)
        child.control.close()
        self.children.remove(child)
        self.shared.load.free(child.column)
        return os.waitstatus_to_exitcode(status)

    def _kill_silent(self) -> None:
        """End those that stand still: who is connected to them waits in vain, and so does a part
        of those that come. Their silence while this process itself stood still says nothing."""
        now = time.monotonic()
        if now - self._looked > _LATE_SECONDS:
            self._awake_since = now
        self._looked = now
        for child in self.children:
            patience = HANG_SECONDS if child.is_ready else START_HANG_SECONDS
            silence = min(self.shared.load.silence(child.column), now - self._awake_since)
            if not child.is_leaving and silence > patience:
                _log.error("a process stands still: it is killed", process=_name(child.slot))
                os.kill(child.pid, signal.SIGKILL)

    def _reap_strangers(self) -> None:
        """As process 1 of a container this is also the parent of what dead children had started."""
        ours = {child.pid for child in self.children}
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while self.children and (found := os.waitid(os.P_ALL, 0, options)) is not None:
            if found.si_pid in ours:
                return
            os.waitpid(found.si_pid, 0)

    # Starting

    def _next_start(self) -> float:
        waiting = [slot.start_at for slot in self.slots.values() if slot.start_at]
        return min((*waiting, time.monotonic() + _LOOK_SECONDS))

    def _start_due(self) -> None:
        now = time.monotonic()
        for number, slot in self.slots.items():
            if slot.start_at and slot.start_at <= now:
                self._start(number, slot)

    def _start(self, number: int, slot: Slot) -> None:
        column = self.shared.load.allocate_column()
        if column is None:  # so many are still draining
            slot.start_at = time.monotonic() + 1.0
            return
        slot.start_at = 0.0
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _log.error("no process can be started", process=_name(number), error=str(error))
            slot.start_at = time.monotonic() + MAX_BACKOFF
            ours.close()
            theirs.close()
            self.shared.load.free(column)
            return
        if pid == 0:
            ours.close()
            self._let_go(number)
            become(self.shared, number, column, theirs, slot.listener, parent)
        theirs.close()
        ours.setblocking(False)
        self.children.append(Child(number, pid, os.pidfd_open(pid), ours, column, time.monotonic()))

    def _let_go(self, number: int) -> None:
        """In a child: of what is the supervisor's or another child's."""
        signal.set_wakeup_fd(-1)
        for child in self.children:
            child.control.close()
            os.close(child.pidfd)
        for other, slot in self.slots.items():
            if other != number:
                slot.listener.close()
        if number != INDEX:
            self.shared.link_sock.close()


def _name(slot: int) -> str:
    return "index" if slot == INDEX else f"worker {slot}"
