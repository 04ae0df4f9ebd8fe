"""Policies that give a key's requests to the same replica."""

from collections.abc import Sequence
from functools import lru_cache

import xxhash

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.replica import Replica
from kvasir_router.options.policy_options import SessionOptions
from kvasir_router.policy.base import LoadPolicy
from kvasir_router.policy.hash_ring import Ring
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.wire.query import Query

_MAX_RINGS = 16
"""Sets of replicas of late that have a ring: those that are full or were tried are missing from
some."""


class KeyedPolicy(LoadPolicy):
    """Hash requests with a key onto a bounded-load ring; send the others to the least loaded
    replica."""

    def __init__(self) -> None:
        self._ring = lru_cache(_MAX_RINGS)(Ring)
        self._without_key = LeastLoad()

    def key(self, query: Query) -> int | None:
        """64 bits; None if the request has none."""
        raise NotImplementedError

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        """Policy.choose."""
        key = self.key(query)
        if key is None:
            return self._without_key.choose(query, candidates)
        return Choice(self._ring(tuple(candidates)).walk(key))

    def forget_replica(self, replica: Replica) -> None:
        """Policy.forget_replica: no ring keeps it alive."""
        self._ring.cache_clear()


class PrefixHash(KeyedPolicy):
    """The prompt's beginning decides: consistent hashing with bounded loads (ring.py) of its first
    text blocks.

    key = the chained hash of the first two text blocks of 512 bytes, about 256 tokens, or of the
    one that there is. Prompts that differ later go to the same replica, whether or not it still has
    them. KubeAI's CHWBL and SGLang's prefix_hash are of this kind.
    """

    KEY_BLOCKS = 2

    def key(self, query: Query) -> int | None:
        """KeyedPolicy.key."""
        chain = query.chain
        return chain[min(len(chain), self.KEY_BLOCKS) - 1] if chain else None


class Session(KeyedPolicy):
    """The conversation decides: consistent hashing with bounded loads (ring.py) of a session key.

    key = the hash of the first of these that the request has: the header and the cookie of the
    options, the body's `user`. vLLM's router and production-stack's session routing
    are of this kind.
    """

    options_type = SessionOptions

    def __init__(self, options: SessionOptions) -> None:
        super().__init__()
        self._header = options.header.lower().encode()
        self._cookie = options.cookie.encode()

    def key(self, query: Query) -> int | None:
        """KeyedPolicy.key."""
        value = query.header(self._header) or self._from_cookie(query)
        if not value:
            user = query.envelope.user
            value = user.encode("utf-8", "surrogatepass") if isinstance(user, str) else b""
        return xxhash.xxh3_64_intdigest(value) if value else None

    def _from_cookie(self, query: Query) -> bytes:
        for pair in (query.header(b"cookie") or b"").split(b";"):
            name, _, value = pair.partition(b"=")
            if name.strip() == self._cookie:
                return value.strip()
        return b""
