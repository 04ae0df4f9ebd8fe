"""Verify that a tokenizer produces the engines' token ids."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from kvasir_router.fleet.replica import Replica
from kvasir_router.index.model_index import ModelIndex

CHECKS_PER_VERDICT = 20
MIN_FOUND = 0.5
"""Share of the checked prompts, below which the tokenizer is not trusted."""
COOLDOWN_SECONDS = 60.0

_SETTLED_SECONDS = 1.0
"""Seconds after the answer until the events of a prompt's blocks have come, and hardly any of its
evictions."""
_CHECK_SECONDS = 0.1
"""Seconds between two prompts that are checked: a look costs as much as a choice."""

_log = structlog.get_logger("kvasir_router.tokenizing")


class TokenizerTrust:
    """Look whether the KV blocks of answered prompts are where these were computed.

    A wrong tokenizer or chat template gives blocks that no engine has; the exact index would then
    refute every true guess of the approximate one. After every 20 prompts of which less than half
    have a single block at their replica, what was learned is forgotten and nothing is tokenised for
    a minute.
    """

    def __init__(self, index: ModelIndex, clock: Callable[[], float] = time.monotonic) -> None:
        self._index = index
        self._clock = clock
        self._pending: deque[tuple[float, Sequence[int], Replica]] = deque()
        self._next = 0.0
        self._checked = 0
        self._found = 0
        self._off_until = 0.0

    @property
    def given(self) -> bool:
        """True if prompts are tokenised."""
        return self._clock() >= self._off_until

    def ended(self, chain: Sequence[int], replica: Replica) -> None:
        """The replica has answered the prompt: it has computed all of its blocks."""
        now = self._clock()
        if chain and now >= self._next:
            self._next = now + _CHECK_SECONDS
            self._pending.append((now + _SETTLED_SECONDS, chain, replica))
        if self._pending and self._pending[0][0] <= now:
            self._check(*self._pending.popleft()[1:])

    def _check(self, chain: Sequence[int], replica: Replica) -> None:
        texts = self._index.texts
        known = texts.known(chain)
        resident = self._index.residency.match(texts, chain).get(replica)
        if resident is None or not texts.at(chain[known - 1])[0]:
            return  # the replica tells nothing, or nothing is claimed
        self._checked += 1
        self._found += resident.kv_blocks > 0
        if self._checked == CHECKS_PER_VERDICT:
            found, self._checked, self._found = self._found, 0, 0
            if found < MIN_FOUND * CHECKS_PER_VERDICT:
                self._turn_off(found)

    def _turn_off(self, found: int) -> None:
        self._off_until = self._clock() + COOLDOWN_SECONDS
        self._pending.clear()
        self._index.texts.clear()
        _log.warning(
            "the tokenizer does not make the engines' tokens; is it the model's, and its chat "
            "template the one that they use? Prompts are not tokenised for a minute",
            found=found,
            of=CHECKS_PER_VERDICT,
        )
