"""Split of a model's requests between its stable revision and a canary."""

import time
from collections.abc import Callable, Sequence
from random import random

import xxhash

from kvasir.wire.canary_samples import CanarySamples, RevisionSamples, bin_of, total
from kvasir_router.discovery.specs import MatchSpec, SplitSpec
from kvasir_router.fleet.canary.conversation import conversation_key
from kvasir_router.fleet.replica import Replica
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage

BURST = 16.0
"""Requests by which the canary may be ahead of its share, or behind it, before conversations no
longer decide: where all requests are of one user, it gets its part of them all the same."""

KEPT_SECONDS = 300.0
"""Samples that are older are forgotten when there are newer ones enough, so that what becomes bad
late in a long step is not lost among what was good."""

_NOT_COUNTED = (408, 429, 499)
"""Statuses of a client that was slow or left, and of a full replica, which is a fault already."""


class CanarySplit:
    """Decides for each request which revision gets it, and counts how both do."""

    def __init__(self, spec: SplitSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self._clock = clock
        self._seed = xxhash.xxh3_64_intdigest(spec.revision.encode())
        # Workers and routers that began with the same number would send their first ones together
        self._owed = random()
        self._began = clock()
        self._before = CanarySamples(spec.id)
        self._now = CanarySamples(spec.id)

    # Who gets a request

    def sends_to_canary(self, query: Query) -> bool:
        """Decide for a request; called once for each.

        What a match names goes to the canary. Of the others it gets its share: a conversation by
        its key's hash, so that its turns meet the same caches, and a larger weight only adds
        conversations to the canary's; a request without a key in turn (error diffusion, as
        Bresenham's line: the n-th goes to the canary where n times the weight passes a whole
        number). What keys give the canary too much or too little, beyond BURST, others make good.
        """
        if any(_matches(each, query) for each in self.spec.matches):
            return True
        weight = self.spec.weight
        if not weight:
            return False
        self._owed += weight
        key = conversation_key(query, self._seed)
        if key is None:
            chosen = self._owed >= 1.0
        elif abs(self._owed) > BURST:
            chosen = self._owed > 0
        else:
            chosen = key < weight * 2**64
        if chosen:
            self._owed -= 1.0
        return chosen

    def among(self, query: Query, candidates: Sequence[Replica], again: bool) -> Sequence[Replica]:
        """Return the candidates of the request's revision, or all where there is none of it. One
        that is sent `again` goes to the stable revision: what failed at the canary is not tried
        there twice."""
        if self.spec.weight is None:
            return candidates
        to_canary = query.to_canary and not again
        chosen = [each for each in candidates if self.is_canary(each) is to_canary]
        return chosen or candidates

    def is_canary(self, replica: Replica) -> bool:
        """Tell if the replica is of the canary's revision."""
        return replica.spec.revision == self.spec.revision

    # How they do

    def failed(self, replica: Replica) -> None:
        """Count an attempt that failed by the replica's fault, whoever answered in the end."""
        self._of(replica).errors += 1

    def answered(
        self,
        query: Query,
        replica: Replica,
        status: int,
        first_byte: float,
        seconds: float,
        usage: Usage | None,
    ) -> None:
        """Count an answer: seconds to its first byte and its end. Failed ones are counted by
        `failed`, and what the client broke off is not counted.

        For a stream of n tokens the inter-token latency is (end - first byte) / (n - 1).
        """
        if status >= 500 or status in _NOT_COUNTED:
            return
        samples = self._of(replica)
        if status >= 400:
            samples.refused += 1
            return
        samples.answers += 1
        if not query.streams or not first_byte:
            return
        if query.to_canary and not self.is_canary(replica):
            return  # the time that the canary took before it failed is not the stable one's
        _count(samples.ttft, first_byte)
        if usage is not None and usage.completion_tokens > 1:
            _count(samples.itl, (seconds - first_byte) / (usage.completion_tokens - 1))

    def samples(self) -> CanarySamples:
        """Return what both revisions did, over the same time."""
        return total(self.spec.id, (self._before, self._now))

    def _of(self, replica: Replica) -> RevisionSamples:
        now = self._clock()
        has_enough = self._now.canary.requests >= max(self.spec.min_samples, 1)
        if has_enough and now - self._began >= KEPT_SECONDS:
            self._before, self._now, self._began = self._now, CanarySamples(self.spec.id), now
        return self._now.canary if self.is_canary(replica) else self._now.stable


def _count(histogram: dict[int, int], seconds: float) -> None:
    place = bin_of(seconds)
    histogram[place] = histogram.get(place, 0) + 1


def _matches(match: MatchSpec, query: Query) -> bool:
    if match.key_id:
        return query.key_id == match.key_id
    value = query.header(match.header.encode()) if match.header else None
    return value is not None and value == match.value.encode()
