"""After a step that failed: its requests end with an error, and every other goes on.

A step that ran out of memory is planned once more, with half its tokens and rows and with its
largest prefill last; a step that could not be planned, with the scheduler built anew. If that
fails too, its requests end. Whatever goes on computes its tokens again, as after a preemption, with
the seeds it had: a client sees a pause.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Several

from kvasir_engine.core.beam_requests import ActiveSearch, BeamRequests
from kvasir_engine.request import FinishReason, SampleDelta
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.step_plan import StepPlan

log = logging.getLogger(__name__)

ClientDeltas = list[tuple[int, SampleDelta]]


class StepRecovery:
    """Bring the scheduler back to where a step can be planned."""

    def __init__(self, scheduler: Scheduler, beams: BeamRequests) -> None:
        self._scheduler = scheduler
        self._beams = beams
        self._tried_again = False
        """True from a failure that ended no request until a step retires."""

    def step_retired(self) -> None:
        """A step's results are on the CPU: the next failure is a new one."""
        self._tried_again = False
        self._scheduler.limit.retired()

    def recover(
        self,
        error: Exception,
        failed: Several[StepPlan],
        short_of_memory: bool,
        *,
        intact: bool,
    ) -> ClientDeltas:
        """Return the errors to tell the clients; no step is in flight.

        `failed` are the plans that raised `error`, or another one after it; without any, no step
        could be planned. `intact` if all that was launched has retired, so that the scheduler and
        the prefix cache are right.
        """
        self._scheduler.counters.failed_steps += 1
        # Of a step that was taken in by half, tokens may be known that no client has been told.
        again = not self._tried_again and ((short_of_memory and intact) or not failed)
        self._tried_again = again
        _log(error, short_of_memory, again)
        try:
            if again and failed:
                self._shrink(failed[0])
            return self._go_on(_sentence(error, short_of_memory), failed, again, intact)
        except Exception:
            log.exception("no request could be kept after a step that failed")
            return self.end_all(_sentence(error, short_of_memory))

    def end_all(self, reason: str) -> ClientDeltas:
        """End every request; returns the errors to tell the clients."""
        scheduler = self._scheduler
        ended = [s for s in scheduler.by_handle.values() if s.handle >= 0]
        told = [_error(each.request.client, each.handle, reason) for each in ended]
        for search in self._beams.withdraw():
            told += _search_errors(search, reason)
        scheduler.by_handle.clear()
        scheduler.rebuild()
        return told

    def _shrink(self, plan: StepPlan) -> None:
        """Have smaller steps planned than the one that ran out of memory."""
        self._scheduler.limit.lower(plan.num_tokens, len(plan.rows))
        largest = int(plan.num_new.argmax())
        if len(plan.rows) > 1 and plan.num_new[largest] > 1:
            self._scheduler.postpone(self._scheduler.rows.sequence(int(plan.rows[largest])))

    def _go_on(
        self, reason: str, failed: Several[StepPlan], again: bool, intact: bool
    ) -> ClientDeltas:
        """End the requests that are to blame and let the others begin again."""
        scheduler = self._scheduler
        blamed = {} if again else self._blamed(failed)
        told = [_error(client, handle, reason) for handle, client in blamed.items() if handle >= 0]
        searches = self._beams.withdraw()
        for handle, sequence in list(scheduler.by_handle.items()):
            # Beams have negative handles, also one that its search did not come to know.
            if handle in blamed or handle < 0:
                scheduler.drop(sequence)
        if intact:
            scheduler.requeue_all()
        else:
            scheduler.rebuild()
        for search in searches:
            if any(beam.handle in blamed for beam in search.beams):
                told += _search_errors(search, reason)
            else:
                self._beams.start(search.request)
        return told

    def _blamed(self, plans: Several[StepPlan]) -> dict[int, int]:
        """Return handles and clients of what the plans compute or sample; of all without a plan.

        Among them may be some that the plan had been found to end, and that own no row any more.
        """
        scheduler = self._scheduler
        if not plans:
            return {h: each.request.client for h, each in scheduler.by_handle.items()}
        blamed = {}
        for handle, client in scheduler.rows.named_by(plans):
            blamed[handle] = client
            if lead := scheduler.by_handle.get(handle):
                blamed.update(dict.fromkeys((each.handle for each in lead.siblings), client))
        return blamed


def _error(client: int, handle: int, reason: str) -> tuple[int, SampleDelta]:
    return client, SampleDelta(handle, [], FinishReason.ERROR, error=reason)


def _search_errors(search: ActiveSearch, reason: str) -> ClientDeltas:
    return [_error(search.request.client, handle, reason) for handle in search.handles]


def _sentence(error: Exception, short_of_memory: bool) -> str:
    if short_of_memory:
        return (
            "The engine ran out of memory while it computed this request; "
            "send it again later, or a shorter one."
        )
    return (
        f"The engine failed while it computed this request ({type(error).__name__}); "
        "its log says where."
    )


def _log(error: Exception, short_of_memory: bool, again: bool) -> None:
    what = "a step ran out of memory" if short_of_memory else "a step failed"
    then = "planned anew" if again else "its requests end"
    if short_of_memory:
        log.warning("%s (%s): %s", what, f"{error}".partition("\n")[0], then)
    else:
        log.error("%s: %s", what, then, exc_info=error)
