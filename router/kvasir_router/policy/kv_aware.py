"""Choose the replica with the lowest cost: uncached prefill plus decode load."""

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import random

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.policy import Score
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.hit_check import Hit
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.policy.token_load import MIN_LOAD_TOKENS, token_loads
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage

MISS_WEIGHT = 4.0
"""What a token costs that this request would have to compute, over one that waits already. The
latter costs time, once; a missed hit is work added to the fleet, room taken from other prefixes,
and so further misses. On llm-d's capacity work (benchmarks/router_benefit.py, 18 requests a second
on eight replicas) 0.63 of the prompts were cached with a weight of 1, 0.96 with 4 and a ratio of 2,
and 0.97 where each prefix has a replica for good."""
MAX_LOAD_RATIO = 2.0
"""Of the mean load: above it a hit does not count. On the same work 1.25, at 25 requests a second,
meant 0.83 cached and 17 s to the first token at the 90th percentile; 2 meant 0.93 and 0.9 s."""


class KvAware:
    """argmin of load + MISS_WEIGHT * new, both in prompt tokens.

    new = the request's prompt tokens that are not in the replica's KV cache
    load = what the replica already has to do (token_load.py)

    A hit counts only if load + new <= max(MIN_LOAD_TOKENS, 2 (all loads + prompt) / replicas),
    so that no prefix, however popular, makes a hot spot; else the replica is taken for one that
    would have to compute the whole prompt. Without a hit this is the least loaded replica. Of
    equals it is the one to which the least text was sent, so that new prompts fill all caches; of
    those again a random one, since several routers that break ties alike would herd.

    The sum is that of Dynamo's KV router (prefill blocks with the new request's less its overlap,
    and decode blocks) with a weight; the bound is that of consistent hashing with bounded loads
    (Mirrokni, Thorup and Zadimoghaddam 2016, c = 2), counted in tokens.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.index = ModelIndex(clock)
        self.sink: BlockSink | None = self.index

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        """Policy.choose."""
        hits = self.index.match(query.chain)
        prompt = query.text_bytes / self.index.bytes_per_token
        loads = token_loads(candidates)
        best = self._least(candidates, _costs(candidates, loads, hits, prompt) if hits else loads)
        hit = hits.get(best)
        if hit is None:
            return Choice(best, 0, int(prompt) + 1)
        saved = min(prompt, hit.tokens)
        return Choice(best, round(saved), int(prompt - saved) + 1, None, hit)

    def sent(self, query: Query, choice: Choice) -> None:
        """Policy.sent."""
        known = choice.hit.text_blocks if choice.hit else 0
        replica = choice.replica
        self.index.routed(query.chain, replica, known, replica.load.kv_capacity)

    def ended(self, query: Query, choice: Choice, usage: Usage | None) -> None:
        """Policy.ended."""
        if usage is not None:
            self.index.ended(choice.replica, choice.hit, usage, query.text_bytes)

    def forget(self, replica: Replica) -> None:
        """Policy.forget."""
        self.index.forget(replica)

    def explain(self, query: Query, candidates: Sequence[Replica]) -> list[Score]:
        """Policy.explain: the cost is load + MISS_WEIGHT * new."""
        hits = self.index.match(query.chain)
        prompt = query.text_bytes / self.index.bytes_per_token
        loads = token_loads(candidates)
        costs = _costs(candidates, loads, hits, prompt)
        chosen = self._least(candidates, costs)
        rows = []
        for replica, load, cost in zip(candidates, loads, costs, strict=True):
            hit = hits.get(replica)
            rows.append(
                Score(
                    replica.id,
                    round(cost, 1),
                    round(min(prompt, hit.tokens)) if hit else 0,
                    round(load, 1),
                    replica is chosen,
                    hit.source.value if hit else None,
                    hit is None or cost < load + MISS_WEIGHT * prompt,
                )
            )
        return rows

    def _least(self, candidates: Sequence[Replica], costs: Sequence[float]) -> Replica:
        least, best, equals = inf, candidates[0], 0
        for at, replica in enumerate(candidates):
            cost = costs[at]
            if cost < least:
                least, best, equals = cost, replica, 1
            elif cost == least:
                equals += 1
        return best if equals == 1 else self._emptiest(candidates, costs, least)

    def _emptiest(
        self, candidates: Sequence[Replica], costs: Sequence[float], cost: float
    ) -> Replica:
        """Of those with this cost."""
        size = self.index.approximate.size
        least, best, equals = -1, candidates[0], 0
        for at, replica in enumerate(candidates):
            if costs[at] != cost:
                continue
            bytes_ = size(replica)
            if least < 0 or bytes_ < least:
                least, best, equals = bytes_, replica, 1
            elif bytes_ == least:
                equals += 1
                if random() * equals < 1.0:
                    best = replica
        return best


def _costs(
    candidates: Sequence[Replica],
    loads: Sequence[float],
    hits: Mapping[CachedReplica, Hit],
    prompt: float,
) -> list[float]:
    total = prompt
    for load in loads:
        total += load
    limit = MAX_LOAD_RATIO * total / len(candidates)
    limit = limit if limit > MIN_LOAD_TOKENS else float(MIN_LOAD_TOKENS)
    miss = MISS_WEIGHT * prompt
    costs = []
    for at, replica in enumerate(candidates):
        load = loads[at]
        hit = hits.get(replica)
        new = prompt if hit is None else prompt - hit.tokens
        new = new if new > 1.0 else 1.0
        counts = hit is not None and load + new <= limit
        costs.append(load + (MISS_WEIGHT * new if counts else miss))
    return costs
