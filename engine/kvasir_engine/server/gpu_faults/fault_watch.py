"""Watch of GPUs for as long as the engine runs, by a probe that may hang.

The probe has a thread of its own, and is asked again only when it has answered: NVML may wait for a
GPU for ever, in a call of the driver that nothing ends. Such a thread is left alone. Nothing but
this process, which computes nothing, waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from kvasir_engine.server.gpu_faults.fault_judge import FaultJudge, GpuFault
from kvasir_engine.server.gpu_faults.gpu_probe import GpuProbe, ProbeError, Sight

LOOK_SECONDS = 1.0
"""Seconds that a look waits for events."""
PAUSE_SECONDS = 0.2
"""Seconds between two looks, however many events there are."""
_TROUBLE_PAUSES = 5
"""Pauses more after a look that failed, which may take no time."""
TIMEOUT_SECONDS = 10.0
"""Seconds after which a probe that does not answer is said to hang."""


class FaultTeller(Protocol):
    """Listener to what is found."""

    def watching(self, gpus: tuple[str, ...]) -> None:
        """These GPUs are watched from now on; called again after trouble."""
        ...

    def unwatched(self, reason: str) -> None:
        """Nothing is watched, for good."""
        ...

    def trouble(self, kind: str, reason: str) -> None:
        """A look failed (`error`) or hangs (`timeout`)."""
        ...

    def seen(self, sight: Sight) -> None:
        """A look has succeeded."""
        ...

    def fault(self, fault: GpuFault) -> None:
        """A GPU has a fault."""
        ...


class FaultWatch:
    """One probe's looks, one after the other."""

    def __init__(
        self,
        probe: GpuProbe,
        judge: FaultJudge,
        teller: FaultTeller,
        *,
        timeout: float = TIMEOUT_SECONDS,
        pause: float = PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout`, `pause` in seconds."""
        self._probe = probe
        self._judge = judge
        self._teller = teller
        self._timeout = timeout
        self._pause = pause
        self._clock = clock
        self._asked: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[object] = queue.SimpleQueue()

    def run(self) -> GpuFault | None:
        """Return the fault that ends the engine; None if nothing can be watched."""
        threading.Thread(target=self._answer, name="gpu-probe", daemon=True).start()
        gpus = self._ask(self._probe.open)
        if not isinstance(gpus, tuple):
            self._teller.unwatched(str(gpus))
            return None
        self._teller.watching(gpus)
        troubled = False
        while True:
            seen = self._ask(lambda: self._probe.look(LOOK_SECONDS))
            if isinstance(seen, Sight):
                if troubled:
                    self._teller.watching(gpus)
                troubled = False
                if (fault := self._take(seen)) is not None:
                    return fault
            else:
                self._teller.trouble("error", str(seen))
                troubled = True
                time.sleep(_TROUBLE_PAUSES * self._pause)
            time.sleep(self._pause)

    def _take(self, sight: Sight) -> GpuFault | None:
        self._teller.seen(sight)
        ending = None
        for fault in self._judge.judge(sight, self._clock()):
            self._teller.fault(fault)
            ending = fault if fault.drains else ending
        return ending

    def _ask(self, question: Callable[[], object]) -> object:
        """Return the probe's answer, or the exception, however long it takes."""
        self._asked.put(question)
        try:
            return self._answers.get(timeout=self._timeout)
        except queue.Empty:
            self._teller.trouble("timeout", f"no answer within {self._timeout:g} s")
        return self._answers.get()

    def _answer(self) -> None:
        while True:
            question = self._asked.get()
            try:
                self._answers.put(question())
            except ProbeError as error:
                self._answers.put(error)
            except Exception as error:  # of a library: it is told, and the next look may succeed
                self._answers.put(f"{type(error).__name__}: {error}")
