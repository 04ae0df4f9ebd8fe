"""What an engine tells: which blocks are findable, and samples to their clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvasir.wire.block_hash import root_hash
from kvasir_engine.request import EngineRequest, FinishReason, SampleDelta


class Mirror:
    """The findable set of one group, rebuilt from its events alone."""

    def __init__(self, check: Callable[[str, list[int]], None]) -> None:
        self.hashes: set[bytes] = set()
        self._prefixes: dict[bytes, tuple[str, list[int]]] = {
            root_hash(cache_salt=salt): (salt, []) for salt in ("", "a", "b")
        }
        self._check = check

    def stored(self, hash_: bytes, parent: bytes, token_bytes: bytes) -> None:
        """BlockListener.stored."""
        assert hash_ not in self.hashes, "announced twice"
        self.hashes.add(hash_)
        salt, before = self._prefixes[parent]
        prefix = [*before, *np.frombuffer(token_bytes, dtype=np.int32).tolist()]
        self._prefixes[hash_] = (salt, prefix)
        self._check(salt, prefix)

    def removed(self, hash_: bytes) -> None:
        """BlockListener.removed."""
        self.hashes.remove(hash_)

    def cleared(self) -> None:
        """BlockListener.cleared."""
        self.hashes.clear()


@dataclass
class Heard:
    """What the client has heard of one sample."""

    request: EngineRequest
    index: int
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    seeds: list[int] = field(default_factory=list)
    num_cached: int | None = None
    prompt_positions: list[int] = field(default_factory=list)
    ended_by_client: bool = False
    logprobs: list[int] = field(default_factory=list)
    score: float | None = None

    @property
    def going(self) -> bool:
        """Neither the core nor the client has ended it."""
        return self.finish is None and not self.ended_by_client

    def take(self, delta: SampleDelta) -> None:
        """A message of the core's."""
        if delta.finish_reason is FinishReason.ERROR:
            assert delta.error
            self.finish = delta.finish_reason
            return
        first = not (self.tokens or self.prompt_positions)
        if self.request.params.use_beam_search:
            first = self.index == 0  # tells for all beams
        assert (delta.seed is not None) == (delta.num_cached_tokens is not None) == first
        if delta.seed is not None:
            self.seeds.append(delta.seed)
            self.num_cached = delta.num_cached_tokens
        self.tokens += delta.token_ids
        self.logprobs += [entry.token_id for entry in delta.logprobs or ()]
        for entry in delta.prompt_logprobs or ():
            position = -int(entry.logprob)
            assert entry.token_id == self.request.prompt_token_ids[position + 1]
            self.prompt_positions.append(position)
        self.score = delta.cumulative_logprob
        self.finish, self.stop_reason = delta.finish_reason, delta.stop_reason
