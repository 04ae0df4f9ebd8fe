"""The overlapped step: step N+1 is planned and launched before step N's tokens reach the CPU.

Where rows have masks, a step is launched in two halves, since its masks need the tokens of the step
before: the forward pass, and sampling in the next turn. Between the two the device computes, while
masks are made and whoever drives the loop delivers news and takes requests in. (A thread that fills
masks meanwhile costs more by taking turns with this one than it saves: 5 % of the tokens a second
of 64 rows on an H200.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from kvasir_engine.core.beam_requests import BeamRequests
from kvasir_engine.core.logits_biases import LogitsBiases
from kvasir_engine.core.recovery import StepRecovery
from kvasir_engine.grammar.matcher import Grammar
from kvasir_engine.request import EngineRequest, FinishReason, SampleDelta
from kvasir_engine.scheduler import step_results
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.scheduler.step_results import StepNews
from kvasir_engine.step_plan import StepPlan
from kvasir_engine.step_runner import Runner, StepHandle

log = logging.getLogger(__name__)

STUCK_AFTER = 1000
"""Iterations in a row with work but neither a plan nor a step in flight: a scheduler's fault."""


GRAMMAR_DEAD_END = (
    "No token of the model's vocabulary continues the output as its grammar says; change the "
    "schema or the grammar."
)


class StepWatcher(Protocol):
    """Learn when steps are launched and retired, for the step age and the metrics."""

    def launched(self, plan: StepPlan) -> None:
        """Called before the launch, so that a launch that hangs is seen too."""
        ...

    def retired(self, plan: StepPlan) -> None:
        """The step's results are on the CPU and taken in, or it has failed."""
        ...


class StuckError(RuntimeError):
    """Requests wait but nothing can be computed: a defect."""

    def __init__(self) -> None:
        super().__init__("the scheduler has work but plans no step")


class CoreLoop:
    """Drive scheduler and runner. Single-threaded; knows nothing of sockets."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        overlap: bool = True,
        watcher: StepWatcher | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.beams = BeamRequests(scheduler)
        self.biases = LogitsBiases(scheduler)
        self._depth = 2 if overlap else 1
        self._watcher = watcher
        self._in_flight: deque[tuple[StepPlan, StepHandle]] = deque()
        self._launching: StepPlan | None = None
        """Step whose forward pass is launched, if its sampling is not."""
        self._early: StepNews | None = None
        """News of steps that were taken in while the next one was launched."""
        self._fruitless = 0
        self._recovery = StepRecovery(scheduler, self.beams)

    def add(self, request: EngineRequest, grammar: Grammar | None = None) -> None:
        """Queue a request that admission.check has let through; `grammar` constrains its output."""
        if request.params.use_beam_search:
            self.beams.start(request)
        else:
            self.biases.watch(self.scheduler.add(request, grammar=grammar))

    def end(self, handle: int) -> None:
        """Stop a sample, or the whole beam search it belongs to; unknown handles are ignored."""
        if not self.beams.end(handle):
            self.scheduler.end(handle)

    def end_client(self, client: int) -> None:
        """Stop every request of one API process."""
        self.beams.end_client(client)
        self.scheduler.end_client(client)

    @property
    def idle(self) -> bool:
        """True if nothing is in flight and nothing waits or runs."""
        return not (self._in_flight or self._launching or self.scheduler.has_work)

    def step(self) -> StepNews | None:
        """Launch what is left of a step, then the next one; take in the oldest if it is its turn.

        Blocks at most once, on the results of a step before the last one launched; after a step
        that failed, until nothing is in flight. Raises what the runner says when the device cannot
        go on; every request has been withdrawn then and the loop is idle.
        """
        self._fail(self.biases.turn())
        later = self._turn()
        earlier, self._early = self._early, None
        return _joined(earlier, later)

    def _turn(self) -> StepNews | None:
        plan = self._launching
        try:
            if plan is not None:
                self._launch_sampling(plan)
            plan = None
            plan = self.scheduler.schedule()
            if plan is not None:
                self._launch(plan)
        except Exception as error:
            return self._recover(error, [] if plan is None else [plan])
        # News that are there wait for no step.
        if (plan is None and self._early is None) or len(self._in_flight) >= self._depth:
            return self._retire()
        return None

    def _tell_retired(self, plan: StepPlan) -> None:
        if self._watcher is not None:
            self._watcher.retired(plan)

    def _launch(self, plan: StepPlan) -> None:
        """Launch a step; only its forward pass if it has masks and another step may run ahead."""
        self._launching = plan
        if self._watcher is not None:
            self._watcher.launched(plan)
        with self._forgotten_if_it_fails(plan):
            self.runner.forward(plan)
            if plan.masked is not None and not self._fill_masks(plan):
                return
        if plan.masked is None or self._depth == 1:
            self._launch_sampling(plan)

    def _fill_masks(self, plan: StepPlan) -> bool:
        """Take in the steps before `plan`, which computes meanwhile, and make its masks of what
        they brought; False if one of them has failed, and `plan` is lost with it."""
        while self._in_flight:
            self._early = _joined(self._early, self._retire())
        if self._launching is None:
            return False
        stuck = self.scheduler.masks.fill_masks(plan)
        self._fail([(each, GRAMMAR_DEAD_END) for each in stuck])
        return True

    def _launch_sampling(self, plan: StepPlan) -> None:
        """Launch the second half of a step."""
        with self._forgotten_if_it_fails(plan):
            handle = self.runner.sample(plan)
        self._launching = None
        self._in_flight.append((plan, handle))
        self.scheduler.launched(plan)

    @contextmanager
    def _forgotten_if_it_fails(self, plan: StepPlan) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self._launching is not None:
                self._launching = None
                self._tell_retired(plan)
            raise

    def _fail(self, samples: list[tuple[Sequence, str]]) -> None:
        """End samples with an error, each by its sentence."""
        news = StepNews.empty()
        for sequence, sentence in samples:
            for each in (sequence, *sequence.siblings):
                delta = SampleDelta(each.handle, [], FinishReason.ERROR, error=sentence)
                news.deltas.append((each.request.client, delta))
            self.scheduler.retire(sequence)
        if samples:
            self._early = _joined(self._early, news)

    def _retire(self) -> StepNews | None:
        if not self._in_flight:
            if self.biases.wait():
                return None
            self._fruitless = self._fruitless + 1 if self.scheduler.has_work else 0
            if self._fruitless <= STUCK_AFTER:
                return None
            self._fruitless = 0
            return self._recover(StuckError(), [])
        plan = self._in_flight[0][0]
        try:
            return self._take_in_oldest()
        except Exception as error:
            lost = self._discard()
            return self._recover(error, [plan], lost)

    def _take_in_oldest(self) -> StepNews:
        self._fruitless = 0
        plan, handle = self._in_flight.popleft()
        try:
            news = step_results.apply(self.scheduler, plan, handle.wait())
        finally:
            self._tell_retired(plan)
        self.beams.hear(news)
        self._recovery.step_retired()
        return news

    def _discard(self) -> list[StepPlan]:
        """Wait for the steps in flight and drop their results; returns their plans."""
        plans = []
        while self._in_flight:
            plan, handle = self._in_flight.popleft()
            # What it still writes to must not have a new owner yet; its own error says no more.
            with suppress(Exception):
                handle.wait()
            self._tell_retired(plan)
            plans.append(plan)
        if self._launching is not None:
            self._tell_retired(self._launching)
            plans.append(self._launching)
            self._launching = None
        return plans

    def _recover(
        self, error: Exception, failed: list[StepPlan], lost: list[StepPlan] | None = None
    ) -> StepNews:
        """Go on after `failed` could not be launched or retired, or after no step could be planned.

        `lost` = steps launched after a step that could not be retired; None = what is in flight was
        launched before, and retires first.
        """
        news = StepNews.empty()
        under_way = {plan.step_id for plan, _ in self._in_flight}
        failed = [plan for plan in failed if plan.step_id not in under_way]
        intact = lost is None and bool(failed)
        for plan in (*failed, *(lost or ())):
            self.scheduler.withdraw(plan)
        while self._in_flight:
            before = self._in_flight[0][0]
            try:
                news.extend(self._take_in_oldest())
            except Exception:
                log.exception("the step before the one that failed could not be retired")
                intact = False
                failed.append(before)
                self.scheduler.withdraw(before)
        try:
            short_of_memory = self.runner.recover(error)
            news.deltas += self._recovery.recover(error, failed, short_of_memory, intact=intact)
        except Exception:
            self._recovery.end_all("")
            raise
        return news

    def check_idle(self) -> None:
        """Raise AssertionError if an idle engine still holds a block or a row."""
        kv, rows = self.scheduler.kv, self.scheduler.rows
        held = [pool.num_referenced for pool in kv.pools]
        known = len(self.scheduler.by_handle) + len(self.beams)
        if any(held) or rows.num_free != rows.num_rows or known:
            raise AssertionError(
                f"idle, but blocks {held} are held, {rows.num_rows - rows.num_free} rows are owned "
                f"and {known} samples or beam searches are known."
            )


def _joined(earlier: StepNews | None, later: StepNews | None) -> StepNews | None:
    if earlier is None or later is None:
        return later if earlier is None else earlier
    earlier.extend(later)
    return earlier
