"""Decision of whether what is seen of GPUs ends the engine: pure, with the time as an argument.

A false alarm must not end more than it has to. So only faults end the engine that are new since it
began to look, and events only if their Xid is listed; a state counts when two looks in turn have
seen it; nothing counts within the first minutes, so that an engine which starts again cannot end
again and again; and it ends once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, Sight
from kvasir_engine.server.gpu_faults.xid_table import xid_clause, xid_kind

SETTLE_SECONDS: Final = 300.0
"""Seconds after the first look in which nothing ends the engine."""
CONFIRMATIONS: Final = 2
"""Looks in turn that must see a state."""
SAME_SECONDS: Final = 60.0
"""Seconds within which a fault of one kind and GPU is in the log once."""

_CLAUSES: Final = {
    "gpu_lost": "it is lost: it has fallen off the bus or does not answer",
    "reset_required": "it takes no work before it is reset",
    "row_remap_failure": "a row could not be remapped",
    "ecc_uncorrectable": "further uncorrectable ECC errors",
}
_HIDDEN: Final = {"row_remap_failure", "ecc_uncorrectable"}


@dataclass(frozen=True, slots=True)
class GpuFault:
    """Fault of one GPU."""

    kind: str
    """Value of the metrics' label."""
    gpu: str
    clause: str
    drains: bool
    """It ends the engine."""
    is_repeated: bool = False
    """The log has one like it already."""

    @property
    def sentence(self) -> str:
        """Return what is told of it."""
        return f"GPU {self.gpu}: {self.clause}"


@dataclass(slots=True)
class _Seen:
    """Faulty states of one GPU."""

    errors: int
    """Uncorrectable errors when it was first seen."""
    before: frozenset[str]
    """Kinds of faults that it had then."""
    looks: dict[str, int] = field(default_factory=dict)
    """For each kind of now, the looks in turn that have seen it."""
    told: set[str] = field(default_factory=set)


class FaultJudge:
    """Faults and states seen so far."""

    def __init__(
        self, drain_xids: frozenset[int], *, drains: bool = True, settle: float = SETTLE_SECONDS
    ) -> None:
        """`drains` False: nothing ends the engine. `settle` in seconds."""
        self._drain_xids = drain_xids
        self._drains = drains
        self._settle = settle
        self._since: float | None = None
        self._gpus: dict[str, _Seen] = {}
        self._logged: dict[tuple[str, str], float] = {}

    def judge(self, sight: Sight, now: float) -> list[GpuFault]:
        """Return the faults to tell after a look; one of all that are ever returned ends the
        engine. `now`: seconds of a monotonic clock."""
        if self._since is None:
            self._since = now
        return [*self._events(sight, now), *self._states(sight, now)]

    def _may_drain(self, now: float) -> bool:
        return self._drains and now - (self._since or 0.0) >= self._settle

    def _events(self, sight: Sight, now: float) -> Iterator[GpuFault]:
        for event in sight.events:
            ends = event.xid in self._drain_xids and self._may_drain(now)
            yield self._fault(xid_kind(event.xid), event.gpu, xid_clause(event.xid), ends, now)

    def _states(self, sight: Sight, now: float) -> Iterator[GpuFault]:
        for state in sight.states:
            if state.gpu not in self._gpus:
                yield from self._first(state, now)
                continue
            seen = self._gpus[state.gpu]
            for kind in self._new_kinds(state, seen):
                ends = self._may_drain(now)
                if ends or kind not in seen.told:
                    seen.told.add(kind)
                    yield self._fault(kind, state.gpu, _CLAUSES[kind], ends, now)

    def _first(self, state: GpuState, now: float) -> Iterator[GpuFault]:
        kinds = frozenset(_kinds(state, errors=None))
        self._gpus[state.gpu] = _Seen(state.uncorrectable_errors or 0, kinds)
        for kind in sorted(kinds):
            clause = f"{_CLAUSES[kind]}, since before the engine looked"
            yield self._fault(kind, state.gpu, clause, False, now)

    def _new_kinds(self, state: GpuState, seen: _Seen) -> list[str]:
        """Return the kinds that are confirmed and new; note what has gone."""
        if state.uncorrectable_errors is not None:
            # Counts begin anew when the driver is loaded again.
            seen.errors = min(seen.errors, state.uncorrectable_errors)
        kinds = set(_kinds(state, seen.errors))
        seen.looks = {kind: seen.looks.get(kind, 0) + 1 for kind in kinds}
        # One that is lost does not tell the rest: what it had, it has.
        still = kinds | _HIDDEN if state.lost or state.needs_reset else kinds
        seen.before &= still
        seen.told &= still
        return sorted(
            kind
            for kind, looks in seen.looks.items()
            if looks >= CONFIRMATIONS and kind not in seen.before
        )

    def _fault(self, kind: str, gpu: str, clause: str, drains: bool, now: float) -> GpuFault:
        self._drains = self._drains and not drains
        logged = self._logged.get((kind, gpu))
        is_repeated = logged is not None and now - logged < SAME_SECONDS
        if not is_repeated:
            self._logged[kind, gpu] = now
        return GpuFault(kind, gpu, clause, drains, is_repeated and not drains)


def _kinds(state: GpuState, errors: int | None) -> Iterator[str]:
    """Yield the kinds of faults in a state; `errors`: how many are no news, None = all."""
    if state.lost:
        yield "gpu_lost"
    if state.needs_reset:
        yield "reset_required"
    if state.row_remap_failed:
        yield "row_remap_failure"
    if errors is not None and (state.uncorrectable_errors or 0) > errors:
        yield "ecc_uncorrectable"
