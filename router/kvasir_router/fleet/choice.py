"""Choice of a policy, and what is kept of it while a request waits."""

from collections.abc import Sequence

from kvasir_router.fleet.replica import Replica
from kvasir_router.index.hit_check import Hit


class Choice:
    """Replica that a request goes to, and the reasons. Immutable."""

    __slots__ = ("hit", "hit_tokens", "new_tokens", "replica")

    def __init__(
        self,
        replica: Replica,
        hit_tokens: int = 0,
        new_tokens: int = 0,
        hit: Hit | None = None,
    ) -> None:
        self.replica = replica
        self.hit_tokens = hit_tokens
        """Prompt tokens believed to be in its KV cache."""
        self.new_tokens = new_tokens
        """Prompt tokens believed to be left to compute: the credit given until the first byte."""
        self.hit = hit
        """Prediction that `hit_tokens` is made of, for those who check it."""


class Kept:
    """A choice made while its request waits, for when the request is started. Immutable."""

    __slots__ = ("among", "choice", "policy", "until")

    def __init__(
        self, choice: Choice, policy: object, among: Sequence[Replica], until: float
    ) -> None:
        self.choice = choice
        self.policy = policy
        """The policy that chose; compared by identity only."""
        self.among = among
        """The candidates considered."""
        self.until = until
        """When the choice expires, by time.monotonic()."""
