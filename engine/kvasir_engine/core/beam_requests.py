"""Beam searches as requests: each running beam is a greedy sample that pauses after a token.

The scheduler knows no beams. As soon as all beams of a step have answered, each goes on with the
best of its continuations that the search keeps; its other continuations are queued as forks of it,
at their search's place and in time for the next plan. A fork's full blocks are found in the prefix
cache and the block it ends in is copied, so that one token is left to compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvasir_engine.core.beam_search import BeamSearch
from kvasir_engine.request import EngineRequest, LogprobEntry, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.scheduler.step_results import StepNews

INTERNAL_HANDLES = 1 << 31
"""Beams answer under negative handles, of which there are this many and which no client has."""


@dataclass(slots=True, eq=False)
class ActiveSearch:
    """A client's request and where its search stands."""

    request: EngineRequest
    search: BeamSearch
    prompt: Sequence
    """Sequence of the first step: its times and seed are the search's."""
    beams: list[Sequence] = field(default_factory=list)
    """Sequences of this step, one for each running beam."""
    answers: dict[int, LogprobEntry] = field(default_factory=dict)
    """Candidates of this step, by beam."""

    @property
    def handles(self) -> range:
        """The client's handles, one a beam of the result."""
        return range(self.request.handle, self.request.handle + self.request.params.n)

    @property
    def places(self) -> range:
        """Places of the beams in the queue."""
        return range(self.prompt.order, self.prompt.order + self.request.params.n)

    def advance(self) -> None:
        """Extend the beams by their candidates, which have all arrived."""
        entries = [self.answers[at] for at in range(len(self.beams))]
        self.answers.clear()
        self.search.advance([e.top_ids for e in entries], [e.top_logprobs for e in entries])

    def results(self) -> list[tuple[int, SampleDelta]]:
        """The finished beams, best first, for the client."""
        deltas = [
            SampleDelta(handle, list(beam.tokens), beam.reason, cumulative_logprob=beam.score)
            for handle, beam in zip(self.handles, self.search.finished, strict=False)
        ]
        deltas[0].num_cached_tokens = self.prompt.num_cached
        deltas[0].seed = self.prompt.sampling.seed
        deltas[0].times = self.prompt.times.queued, self.prompt.times.started
        return [(self.request.client, delta) for delta in deltas]


class BeamRequests:
    """Run beam searches on a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._searches: dict[int, ActiveSearch] = {}
        """Searches by every handle of their clients."""
        self._asked: dict[int, tuple[ActiveSearch, int]] = {}
        """Search and beam of each request that is queued or runs, by its handle."""
        self._ending: list[ActiveSearch] = []
        """Searches whose results are in no news yet."""

    def __len__(self) -> int:
        return len(set(self._searches.values()))

    def start(self, request: EngineRequest) -> None:
        """Begin the search of a request that admission.check has let through."""
        params = request.params
        room = self._scheduler.max_model_len - request.num_prompt_tokens
        search = BeamSearch(
            width=params.n,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            stop_ids=frozenset(request.all_stop_ids()),
            max_new_tokens=min(room, params.max_tokens or room),
        )
        place = self._scheduler.reserve_places(params.n)
        step = SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=search.candidates, seed=params.seed
        )
        prompt = self._scheduler.add(
            replace(request, handle=_handle(place), params=step, eos_token_ids=[]), place=place
        )
        active = ActiveSearch(request, search, prompt)
        self._searches.update(dict.fromkeys(active.handles, active))
        self._ask(active, [prompt])

    def end(self, handle: int) -> bool:
        """Drop the search that one of these handles belongs to; False if there is none."""
        active = self._searches.get(handle)
        if active is None:
            return False
        self._end_search(active)
        return True

    def end_client(self, client: int) -> None:
        """Drop every search of one API process."""
        for active in set(self._searches.values()):
            if active.request.client == client:
                self.end(active.request.handle)

    def withdraw(self) -> list[ActiveSearch]:
        """Forget every search, without a word to the scheduler; returns them."""
        searches = list(dict.fromkeys([*self._ending, *self._searches.values()]))
        self._ending.clear()
        self._searches.clear()
        self._asked.clear()
        return searches

    def hear(self, news: StepNews) -> None:
        """Take the beams' answers out of a step's news, go on with them, add what has finished."""
        if not self._asked:
            return
        told: list[tuple[int, SampleDelta]] = []
        answered: dict[ActiveSearch, list[Sequence]] = {}
        for client, delta in news.deltas:
            found = self._asked.pop(delta.handle, None)
            if found is None:
                told.append((client, delta))
                continue
            if not delta.logprobs:
                raise AssertionError("a beam's request came back without candidates.")
            active, beam = found
            active.answers[beam] = delta.logprobs[0]
            answered.setdefault(active, []).append(active.beams[beam])
        for active, beams in answered.items():
            if len(active.answers) < len(active.beams):
                self._release(beams)
                continue
            active.advance()
            if active.search.done:
                told.extend(active.results())
                self._ending.append(active)
                self._end_search(active)
            else:
                self._go_on(active)
        news.deltas = told
        self._ending.clear()

    def _release(self, beams: list[Sequence]) -> None:
        """Free what beams hold that go on later or not at all; others might need it."""
        for sequence in beams:
            if sequence.row >= 0:
                self._scheduler.commits.keep_tail(sequence)
                self._scheduler.retire(sequence)

    def _go_on(self, active: ActiveSearch) -> None:
        """Let each sequence go on as its best continuation, and queue the others as forks."""
        parents, running = active.beams, active.search.running
        more = len(running) - len(parents)
        kept: dict[int, int] = {}
        # The beams of a step start together, when there are rows for all.
        if more <= self._scheduler.rows.num_free and all(each.row >= 0 for each in parents):
            kept = {beam.parent: at for at, beam in reversed([*enumerate(running)])}
        self._release([parent for at, parent in enumerate(parents) if at not in kept])
        taken = {parents[at].order for at in kept}
        places = (place for place in active.places if place not in taken)
        together = len(running) - len(kept)
        beams = []
        for at, beam in enumerate(running):
            sequence, token = parents[beam.parent], beam.tokens[-1]
            if kept.get(beam.parent) == at:
                self._scheduler.extend(sequence, token)
            else:
                place = next(places)
                sequence = self._scheduler.fork(sequence, token, handle=_handle(place), place=place)
                sequence.together, together = together, 1
            beams.append(sequence)
        self._ask(active, beams)

    def _ask(self, active: ActiveSearch, beams: list[Sequence]) -> None:
        active.beams = beams
        for at, sequence in enumerate(beams):
            self._asked[sequence.handle] = (active, at)

    def _end_search(self, active: ActiveSearch) -> None:
        for sequence in active.beams:
            self._asked.pop(sequence.handle, None)
            self._scheduler.retire(sequence)
        for handle in active.handles:
            del self._searches[handle]
        self._scheduler.ended.record(active.prompt)


def _handle(place: int) -> int:
    """Return the handle of the beam at a place in the queue."""
    return -1 - place % INTERNAL_HANDLES
