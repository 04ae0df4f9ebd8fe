"""What a policy answers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvasir_router.fleet.replica import Replica
from kvasir_router.index.hit_check import Hit

if TYPE_CHECKING:
    from kvasir_router.policy.base import Policy


class Choice:
    """Where a request goes. Never changed."""

    __slots__ = ("hit", "hit_tokens", "new_tokens", "prefill", "replica")

    def __init__(
        self,
        replica: Replica,
        hit_tokens: int = 0,
        new_tokens: int = 0,
        prefill: Replica | None = None,
        hit: Hit | None = None,
    ) -> None:
        self.replica = replica
        """Decodes, and prefills too unless `prefill` is another one."""
        self.hit_tokens = hit_tokens
        """Prompt tokens believed to be in its KV cache."""
        self.new_tokens = new_tokens
        """Prompt tokens believed to be left to compute: the credit given until the first byte."""
        self.prefill = prefill
        """The prefilling replica of a pair, with disaggregated prefill."""
        self.hit = hit
        """What `hit_tokens` is made of, for those who check it."""


class Kept:
    """A choice that was made while its request waits, for when it is started. Never changed."""

    __slots__ = ("among", "choice", "policy", "until")

    def __init__(
        self, choice: Choice, policy: "Policy", among: Sequence[Replica], until: float
    ) -> None:
        self.choice = choice
        self.policy = policy
        """Who made it,"""
        self.among = among
        """of these,"""
        self.until = until
        """and how long it is taken for what would be chosen anew, by time.monotonic()."""
