"""One beam search in the scheduler: a group of rows that steps, waits and is preempted as one."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvasir_engine.scheduler.beams.beam_search import BeamSearch
from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.step_plan import Float32Array, Int32Array


@dataclass(slots=True, eq=False)
class BeamGroup:
    """One request's search. members[i] owns the row of running beam i."""

    lead: Sequence
    search: BeamSearch
    members: list[Sequence]
    offered: dict[int, tuple[Int32Array, Float32Array]] = field(default_factory=dict)
    """Candidates that have arrived, by beam."""

    @property
    def complete(self) -> bool:
        """Every running beam has offered its candidates."""
        return len(self.offered) == len(self.search.running)


def make_group(lead: Sequence) -> BeamGroup:
    """A search from `lead`, whose siblings own the rows of the further beams."""
    params = lead.request.params
    search = BeamSearch(
        width=params.n,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        stop_ids=frozenset(lead.all_stop_ids()),
        max_new_tokens=lead.limit - lead.num_prompt,
    )
    group = BeamGroup(lead, search, [lead, *lead.siblings])
    for member in group.members:
        member.beam_group, member.lead = group, None
    lead.siblings = []
    return group
