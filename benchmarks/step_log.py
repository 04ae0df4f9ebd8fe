"""Durations of a workload's steps, by kind and size."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from common import Table

from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.step_plan import StepPlan

ROWS = 32
"""Decodes are told apart by multiples of so many rows, other steps by powers of two of tokens."""


@dataclass(frozen=True, slots=True)
class _Step:
    began: float
    kind: str
    tokens: int
    context: int
    """Keys that decodes attend to."""
    scheduling: float
    """Seconds."""


class StepLog:
    """Note each step that a scheduler plans. Steps overlap, so that a step's time is taken to be
    the time until the next one is planned: right on average, not for a single one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._steps: list[_Step] = []
        self._schedule = scheduler.schedule
        # An instance's own attribute hides the method.
        scheduler.schedule = self._noted  # type: ignore[method-assign]

    def clear(self) -> None:
        """Forget what there was."""
        self._steps.clear()

    def _noted(self) -> StepPlan | None:
        began = time.perf_counter()
        plan = self._schedule()
        if plan is not None:
            decodes = plan.num_decodes
            context = int((plan.starts + plan.num_new)[:decodes].sum())
            took = time.perf_counter() - began
            tokens, most = plan.num_tokens, -(-decodes // ROWS) * ROWS
            kind = f"decodes, {most - ROWS + 1}-{most} rows"
            if tokens != decodes:
                kind = f"mixed, up to {1 << (tokens - 1).bit_length()} tokens"
            self._steps.append(_Step(began, kind, tokens, context, took))
        return plan

    def table(self, work: str, end: float) -> Table:
        """Return the table of the steps since `clear`; `end` is when the work was done
        (time.perf_counter)."""
        ends = [*(step.began for step in self._steps), end][1:]
        by_kind: defaultdict[str, list[tuple[_Step, float]]] = defaultdict(list)
        for step, done in zip(self._steps, ends, strict=True):
            by_kind[step.kind].append((step, done - step.began))
        rows = []
        for kind, noted in sorted(by_kind.items(), key=lambda each: -sum(t for _, t in each[1])):
            count, steps = len(noted), [step for step, _ in noted]
            seconds = sum(took for _, took in noted)
            rows.append(
                [
                    kind,
                    str(count),
                    f"{seconds:.3f}",
                    f"{seconds / count * 1e3:.2f}",
                    f"{sum(step.tokens for step in steps) / count:.0f}",
                    f"{sum(step.context for step in steps) / count:,.0f}",
                    f"{sum(step.scheduling for step in steps) / count * 1e3:.2f}",
                ]
            )
        header = ["steps", "count", "s", "ms each", "tokens", "keys of decodes", "scheduling, ms"]
        return Table(f"Steps of {work}", header, rows)
