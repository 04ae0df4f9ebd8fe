"""Beam searches as requests of one token: each step of a search is one for each of its beams.

The scheduler knows no beams. A beam goes on as a resumed sample: its full blocks are found in the
prefix cache and the block it ends in is copied, so that one token is left to compute. As soon as
all beams of a step have answered, their best continuations are queued at their search's place, in
time for the next plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvasir_engine.core.beam_search import BeamSearch
from kvasir_engine.request import EngineRequest, LogprobEntry, Resume, SampleDelta
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
    place: int
    """The first beam's in the queue; the other beams' follow it."""
    seed: int | None
    num_cached_tokens: int | None = None
    answers: dict[int, LogprobEntry] = field(default_factory=dict)
    """Candidates of this step, by beam."""
    asked: list[int] = field(default_factory=list)
    """Handles of this step's requests."""
    prompt: Sequence | None = None
    """Sequence of the first step: its times are the search's, for the metrics."""

    @property
    def handles(self) -> range:
        """The client's handles, one a beam of the result."""
        return range(self.request.handle, self.request.handle + self.request.params.n)

    def answer(self, beam: int, delta: SampleDelta) -> bool:
        """Take the candidates of one beam; True when the search has advanced by them."""
        if self.num_cached_tokens is None:
            self.seed, self.num_cached_tokens = delta.seed, delta.num_cached_tokens
        if not delta.logprobs:
            raise AssertionError("a beam's request came back without candidates.")
        self.answers[beam] = delta.logprobs[0]
        if len(self.answers) < len(self.asked):
            return False
        entries = [self.answers[at] for at in range(len(self.asked))]
        self.answers.clear()
        self.asked.clear()
        self.search.advance([e.top_ids for e in entries], [e.top_logprobs for e in entries])
        return True

    def step_params(self) -> SamplingParams:
        """Return the parameters of the next step's requests: one token more, its best alternatives
        beside it."""
        return SamplingParams(
            temperature=0.0,
            max_tokens=len(self.search.running[0].tokens) + 1,
            logprobs=self.search.candidates,
            seed=self.seed,
        )

    def results(self) -> list[tuple[int, SampleDelta]]:
        """The finished beams, best first, for the client."""
        deltas = [
            SampleDelta(handle, list(beam.tokens), beam.reason, cumulative_logprob=beam.score)
            for handle, beam in zip(self.handles, self.search.finished, strict=False)
        ]
        deltas[0].num_cached_tokens = self.num_cached_tokens
        deltas[0].seed = self.seed
        return [(self.request.client, delta) for delta in deltas]


class BeamRequests:
    """Runs beam searches on a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._searches: dict[int, ActiveSearch] = {}
        """Searches by every handle of their clients."""
        self._asked: dict[int, tuple[ActiveSearch, int]] = {}
        """Search and beam of each request that is queued or runs, by its handle."""

    def __len__(self) -> int:
        return len(set(self._searches.values()))

    def start(self, request: EngineRequest) -> None:
        """Begin the search of a request that admission.check has let through."""
        params = request.params
        room = self._scheduler.max_model_len - request.num_prompt_tokens
        eos = [] if params.ignore_eos else request.eos_token_ids
        search = BeamSearch(
            width=params.n,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            stop_ids=frozenset([*eos, *params.stop_token_ids]),
            max_new_tokens=min(room, params.max_tokens or room),
        )
        active = ActiveSearch(
            request, search, self._scheduler.reserve_places(params.n), params.seed
        )
        self._searches.update(dict.fromkeys(active.handles, active))
        self._ask(active)

    def end(self, handle: int) -> bool:
        """Drop the search that one of these handles belongs to; False if there is none."""
        active = self._searches.get(handle)
        if active is None:
            return False
        for asked in active.asked:
            self._asked.pop(asked, None)
            self._scheduler.end(asked)
        self._forget(active)
        return True

    def end_client(self, client: int | None = None) -> None:
        """Drop every search of one API process, or of all."""
        for active in set(self._searches.values()):
            if client in (None, active.request.client):
                self.end(active.request.handle)

    def hear(self, news: StepNews) -> None:
        """Take the beams' answers out of a step's news, go on with them, add what has finished."""
        if not self._asked:
            return
        told: list[tuple[int, SampleDelta]] = []
        for client, delta in news.deltas:
            found = self._asked.pop(delta.handle, None)
            if found is None:
                told.append((client, delta))
                continue
            active, beam = found
            if not active.answer(beam, delta):
                continue
            if active.search.done:
                told.extend(active.results())
                self._forget(active)
            else:
                self._ask(active)
        news.deltas = told

    def _ask(self, active: ActiveSearch) -> None:
        """Queue a request of one token for each running beam."""
        asks, params = active.request, active.step_params()
        for at, beam in enumerate(active.search.running):
            place = active.place + at
            # dataclasses.replace costs ten times as much.
            request = EngineRequest(
                request_id=asks.request_id,
                handle=-1 - place % INTERNAL_HANDLES,
                prompt_token_ids=asks.prompt_token_ids,
                params=params,
                block_hashes=asks.block_hashes,
                cache_salt=asks.cache_salt,
                priority=asks.priority,
                resume=Resume(list(beam.tokens)),
                client=asks.client,
            )
            active.asked.append(request.handle)
            self._asked[request.handle] = (active, at)
            together = 1 if at else len(active.search.running)
            sequence = self._scheduler.add(request, place=place, together=together)
            active.prompt = active.prompt or sequence

    def _forget(self, active: ActiveSearch) -> None:
        for handle in active.handles:
            del self._searches[handle]
        if active.prompt is not None:
            self._scheduler.record_end(active.prompt)
