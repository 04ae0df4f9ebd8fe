"""Admission of a request: who sends it, whether it may use the model, and how much."""

import time
from collections import Counter
from collections.abc import Callable
from math import ceil, isfinite
from pathlib import Path

from kvasir_router.admission.keyring import Holder, Keyring
from kvasir_router.admission.limits import DAY, Excess, Limit
from kvasir_router.admission.ticket import Ticket, output_estimate, prompt_estimate
from kvasir_router.fleet.target import Target
from kvasir_router.wire import responses
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.long_bodies.media import NONE, Media
from kvasir_router.wire.responses import Answer, RefusalError

_MESSAGES = {
    Limit.REQUESTS: "{} requests a minute",
    Limit.TOKENS: "{} tokens a minute",
    Limit.BUDGET: "{} tokens a day",
}

_UNAUTHORIZED = responses.error(
    401,
    "The API key is missing or unknown; send it as `Authorization: Bearer KEY`.",
    "invalid_api_key",
)
_UNAUTHORIZED.lines = b"WWW-Authenticate: Bearer\r\n"


class Admission:
    """Authenticate a request (`holder`, before its body) and admit it (`admit`, after).

    Without a key file everybody may use everything; its keys are divided by the number of
    `routers` that share the clients.
    """

    def __init__(
        self,
        keys_file: Path | None = None,
        routers: int = 1,
        reported: Callable[[bool], None] = lambda good: None,
    ) -> None:
        """`reported` is told of each reading of the key file whether it was good."""
        self._reported = reported
        self.keyring = None if keys_file is None else Keyring(keys_file, routers, self._keys_read)
        self.reads: Counter[str] = Counter()
        """Reads of the key file, by result."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        """Refusals by tenant ("" = unknown) and reason."""

    def holder(self, authorization: bytes) -> Holder | None:
        """Return the holder of the key, None when no keys are needed. Raises RefusalError."""
        if self.keyring is None:
            return None
        holder = self.keyring.find(authorization)
        if holder is None:
            self.refusals["", "unauthorized"] += 1
            raise RefusalError(_UNAUTHORIZED)
        return holder

    def without_models(self, holder: Holder) -> Answer:
        """Return the refusal of a key that may use no model."""
        self.refusals[holder.key.tenant, "forbidden"] += 1
        message = f"The API key `{holder.key.id}` may use no model."
        return responses.error(403, message, "model_forbidden")

    def admit(
        self,
        holder: Holder | None,
        envelope: Envelope,
        size: int,
        name: str,
        target: Target,
        media: Media = NONE,
        *,
        computed: bool = True,
    ) -> Ticket:
        """Return a ticket for a request of `size` bytes to the model that the client calls `name`;
        one that nothing is `computed` for takes no tokens.

        Raises RefusalError.
        """
        prompt = prompt_estimate(size, media) if computed else 0
        output = output_estimate(envelope) if computed else 0
        if holder is None:
            return Ticket(prompt, output)
        key = holder.key
        if not holder.may_use(name, target):
            self.refusals[key.tenant, "forbidden"] += 1
            raise RefusalError(forbidden(key.id, name))
        unix = time.time()
        excess = holder.limits.admit(prompt + output, time.monotonic(), unix)
        if excess is not None:
            self.refusals[key.tenant, excess.limit.value] += 1
            raise RefusalError(_exceeded(key.id, excess))
        return Ticket(
            prompt,
            output,
            tenant=key.tenant,
            key_id=key.id,
            priority=key.priority,
            weight=key.weight,
            limits=holder.limits,
            admitted=unix,
        )

    def _keys_read(self, good: bool) -> None:
        self.reads["ok" if good else "refused"] += 1
        self._reported(good)


def forbidden(key_id: str, name: str) -> Answer:
    """Refuse a model that the key may not use, without telling whether there is one."""
    return responses.error(
        403,
        f"The API key `{key_id}` may not use model `{name[:256]}`; /v1/models lists what it may.",
        "model_forbidden",
        "model",
    )


def _exceeded(key_id: str, excess: Excess) -> Answer:
    allowed = _MESSAGES[excess.limit].format(f"{excess.allowed:g}")
    seconds = max(ceil(excess.seconds), 1) if isfinite(excess.seconds) else DAY
    return responses.error(
        429,
        f"The API key `{key_id}` may use {allowed} here; try again in {seconds} s.",
        "insufficient_quota" if excess.limit is Limit.BUDGET else "rate_limit_exceeded",
        retry_after=seconds,
    )
