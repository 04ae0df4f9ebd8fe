"""Ticket that an admitted request carries until it ends: who sent it, and what was set aside for
it."""

from enum import IntEnum
from math import inf

from kvasir_router.admission.limits import KeyLimits
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.long_bodies.media import NONE, Media
from kvasir_router.wire.query import BYTES_PER_TOKEN

OUTPUT_RESERVED = 512
"""Output tokens set aside for a request that does not bound its answer."""

OUTPUT_RESERVED_MAX = 4096
"""Output tokens set aside for a request that does: clients ask for far more than they use."""

_EVENT_BYTES = 200
"""Bytes of a stream for one token: engines write one event a token, of about this size."""

_TEXT_BYTES = 4

_TOKENS_A_SECOND = 100
"""Tokens that an engine computes for one request in a second, about."""


class Priority(IntEnum):
    """Classes in the order in which waiting requests are served."""

    SYSTEM = 0
    INTERACTIVE = 1
    DEFAULT = 2
    BULK = 3


class Ticket:
    """Made at admission, settled once at the end."""

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        tenant: str = "",
        key_id: str = "",
        priority: Priority = Priority.DEFAULT,
        weight: float = 1.0,
        limits: KeyLimits | None = None,
        admitted: float = 0.0,
        ends: float = inf,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        """Estimated from the body's size."""
        self.output_tokens = output_tokens
        """Estimated from what the request allows itself."""
        self.tenant = tenant
        self.key_id = key_id
        self.priority = priority
        self.weight = weight
        """The tenant's share, relative to others'."""
        self.limits = limits
        """The key's limits, until settlement; None without keys."""
        self.admitted = admitted
        """Unix seconds."""
        self.ends = ends
        """Unix seconds at which the request's access token ends it."""
        self.waits_since = 0.0
        """Time at which it first had to wait, by the queue's clock; 0 = never."""
        self.charged = 0.0
        """Service that its tenant's counter holds for it (see `fairness`)."""

    @property
    def estimate(self) -> int:
        """Tokens set aside in its key's limits."""
        return self.prompt_tokens + self.output_tokens

    def used_tokens(
        self, *, streamed: bool, sent_bytes: int, seconds: float = 0.0
    ) -> tuple[int, int]:
        """Return the prompt and output tokens of a request that has reached an engine which did not
        tell: the prompt's estimate, and what `sent_bytes` of an answer are worth. A client that
        leaves, or an engine that dies, has used what was computed so far: of an answer that would
        have come as a whole, as much as `seconds` are worth."""
        output = sent_bytes // (_EVENT_BYTES if streamed else _TEXT_BYTES)
        if not streamed:
            output = max(output, int(seconds * _TOKENS_A_SECOND))
        return self.prompt_tokens, min(output, self.output_tokens)

    def settle(self, tokens: int, now: float, unix: float) -> None:
        """Correct what was set aside for a request that ended and used `tokens` in all, once."""
        limits, self.limits = self.limits, None
        if limits is not None:
            limits.settle(self.estimate, tokens, self.admitted, now, unix)


def prompt_estimate(body_bytes: int, media: Media = NONE) -> int:
    """Tokens of a prompt, from the size of the body that holds it, and of the `media` in that."""
    return int(max(body_bytes - media.size, 0) / BYTES_PER_TOKEN) + media.tokens + 1


def output_estimate(envelope: Envelope) -> int:
    """Tokens to set aside for the answers: what the request allows, bounded, for each of `n`.
    Whatever else a client may have sent counts as nothing."""
    allowed = OUTPUT_RESERVED
    for given in (
        envelope.max_completion_tokens,
        envelope.max_tokens,
        envelope.max_output_tokens,
    ):
        if type(given) is int and given > 0:
            allowed = given
            break
    choices = envelope.n
    if type(choices) is int and choices > 1:
        allowed *= choices
    return allowed if allowed < OUTPUT_RESERVED_MAX else OUTPUT_RESERVED_MAX
