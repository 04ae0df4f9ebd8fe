"""Choose the replica with the lowest cost: uncached prefill plus decode load."""

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import random
from typing import ClassVar

from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.policy import Score
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.hit_check import Hit
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.options.policy_options import KvAwareOptions
from kvasir_router.policy.token_load import token_loads
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage

_DEFAULTS = KvAwareOptions()


class KvAware:
    """argmin of load + miss_weight * new, both in prompt tokens.

    new = the request's prompt tokens that are not in the replica's KV cache
    load = what the replica already has to do (token_load.py)

    A hit counts only if load + new <= max(min_load_tokens, max_load_ratio (all loads + prompt) /
    replicas), so that no prefix, however popular, makes a hot spot; else the replica is taken for
    one that would have to compute the whole prompt. Without a hit this is the least loaded replica.
    Of equals it is the one to which the least text was sent, so that new prompts fill all caches;
    of those again a random one, since several routers that break ties alike would herd.

    The sum is that of Dynamo's KV router (prefill blocks with the new request's less its overlap,
    and decode blocks) with a weight; the bound is that of consistent hashing with bounded loads
    (Mirrokni, Thorup and Zadimoghaddam 2016, c = 2), counted in tokens.
    """

    options_type: ClassVar[type[KvAwareOptions]] = KvAwareOptions

    def __init__(
        self, options: KvAwareOptions = _DEFAULTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.spec = PolicySpec("kv_aware")
        self._miss_weight = options.miss_weight
        self._max_load_ratio = options.max_load_ratio
        self._min_load_tokens = options.min_load_tokens
        self._decode_weight = options.decode_weight
        self._barrier_tokens = options.barrier_tokens
        self.index = ModelIndex(
            clock,
            max_resident_blocks=options.max_resident_blocks,
            max_sent_blocks=options.max_sent_blocks,
            max_text_blocks=options.max_text_blocks,
        )
        self.sink: BlockSink | None = self.index

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        """Policy.choose."""
        hits = self.index.match(query.chain)
        prompt = query.text_bytes / self.index.bytes_per_token
        loads = token_loads(candidates, self._decode_weight, self._barrier_tokens)
        costs = self._costs(candidates, loads, hits, prompt) if hits else loads
        best = self._least(candidates, costs)
        hit = hits.get(best)
        if hit is None:
            return Choice(best, 0, int(prompt) + 1)
        saved = min(prompt, hit.tokens)
        return Choice(best, round(saved), int(prompt - saved) + 1, hit)

    def sent(self, query: Query, choice: Choice) -> None:
        """Policy.sent."""
        known = choice.hit.text_blocks if choice.hit else 0
        replica = choice.replica
        self.index.routed(query.chain, replica, known, replica.load.kv_capacity)

    def ended(self, query: Query, choice: Choice, usage: Usage | None) -> None:
        """Policy.ended."""
        if usage is not None:
            self.index.ended(choice.replica, choice.hit, usage, query.text_bytes)

    def forget_replica(self, replica: Replica) -> None:
        """Policy.forget_replica."""
        self.index.forget_replica(replica)

    def explain(self, query: Query, candidates: Sequence[Replica]) -> list[Score]:
        """Policy.explain: the cost is load + miss_weight * new."""
        hits = self.index.match(query.chain)
        prompt = query.text_bytes / self.index.bytes_per_token
        loads = token_loads(candidates, self._decode_weight, self._barrier_tokens)
        costs = self._costs(candidates, loads, hits, prompt)
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
                    hit is None or cost < load + self._miss_weight * prompt,
                )
            )
        return rows

    def _costs(
        self,
        candidates: Sequence[Replica],
        loads: Sequence[float],
        hits: Mapping[CachedReplica, Hit],
        prompt: float,
    ) -> list[float]:
        total = prompt
        for load in loads:
            total += load
        limit = self._max_load_ratio * total / len(candidates)
        limit = limit if limit > self._min_load_tokens else self._min_load_tokens
        miss_weight = self._miss_weight
        miss = miss_weight * prompt
        costs = []
        for at, replica in enumerate(candidates):
            load = loads[at]
            hit = hits.get(replica)
            new = prompt if hit is None else prompt - hit.tokens
            new = new if new > 1.0 else 1.0
            counts = hit is not None and load + new <= limit
            costs.append(load + (miss_weight * new if counts else miss))
        return costs

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
        """Return the candidate of this cost that holds the fewest bytes of text."""
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
