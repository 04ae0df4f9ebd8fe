"""Speed at which a replica was seen to compute prompts."""

_SMOOTHING = 0.2
"""Weight of the newest measurement."""
_MIN_TOKENS = 512
"""Minimum that is measured: of fewer the time says more about the way there and the first step."""
_UNKNOWN = 200.0
"""Tokens a second of a replica that has not been measured: slower than any but small CPUs."""
_SLACK = 4.0
"""A prompt may take so many times what the speed says: decodes and other prompts run beside it."""


class PrefillRate:
    """Measured by the first bytes of streams; waiting in the engine's queue counts as computing, so
    that a replica with a longer queue is given more time."""

    __slots__ = ("tokens_per_second",)

    def __init__(self) -> None:
        self.tokens_per_second = 0.0
        """0 = not measured yet."""

    def observed(self, tokens: int, seconds: float) -> None:
        """So many tokens of prompts, with those before it, were in flight when a request was sent
        whose first byte came after these seconds."""
        if tokens < _MIN_TOKENS:
            return
        rate = tokens / max(seconds, 0.001)
        known = self.tokens_per_second or rate
        self.tokens_per_second = known + _SMOOTHING * (rate - known)

    def allowance(self, tokens: int) -> float:
        """Return the seconds in which it should have computed so many tokens of prompts."""
        return _SLACK * tokens / (self.tokens_per_second or _UNKNOWN)
