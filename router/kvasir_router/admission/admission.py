"""Admission of a request: who sends it, whether it may use the model, and how much."""

import time
from collections import Counter
from collections.abc import Callable
from math import ceil, isfinite
from pathlib import Path

from kvasir_router.admission.access_tokens.token_source import Reason, TokenError, TokenSource
from kvasir_router.admission.keyring import Holder, Keyring
from kvasir_router.admission.limits import DAY, Allowance, Excess, KeyLimits, Limit
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
_INVALID = 401, "invalid_token"
MAX_REFUSED_TENANTS = 1000
OTHERS = "(others)"
"""Label of tenants beyond what has series of its own."""


class Admission:
    """Authenticate a request (`holder`, before its body) and admit it (`admit`, after).

    Without a key file and an issuer file everybody may use everything; limits are divided by the
    number of `routers` that share the clients. A credential of a JWT's form is an access token, and
    never looked for among the keys.
    """

    def __init__(
        self,
        keys_file: Path | None = None,
        routers: int = 1,
        reported: Callable[[bool], None] = lambda good: None,
        tokens: TokenSource | None = None,
    ) -> None:
        """`reported` is told of each reading of the key file whether it was good."""
        self._reported = reported
        self.tokens = tokens
        self._routers = routers
        self._elsewhere: Callable[[str, float], float] | None = None
        self.keyring = None if keys_file is None else Keyring(keys_file, routers, self._keys_read)
        self.reads: Counter[str] = Counter()
        """Reads of the key file, by result."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        """Refusals by tenant ("" = unknown) and reason."""

    @property
    def is_open(self) -> bool:
        """Return whether everybody may use everything."""
        return self.keyring is None and self.tokens is None

    def holder(self, authorization: bytes) -> Holder | None:
        """Return the holder of the key or token, None when none is needed. Raises RefusalError."""
        tokens = self.tokens
        if tokens is not None and tokens.is_token(authorization):
            return self._token_holder(tokens, authorization)
        if self.keyring is None and tokens is None:
            return None
        holder = None if self.keyring is None else self.keyring.find(authorization)
        if holder is None:
            self._refused("", "unauthorized")
            raise RefusalError(_UNAUTHORIZED)
        return holder

    def _token_holder(self, tokens: TokenSource, authorization: bytes) -> Holder:
        try:
            return tokens.find(authorization)
        except TokenError as error:
            answer = bad_token(error)
            self._refused("", "forbidden" if answer.status == 403 else "unauthorized")
            raise RefusalError(answer) from None

    def without_models(self, holder: Holder) -> Answer:
        """Return the refusal of a key that may use no model."""
        self._refused(holder.key.tenant, "forbidden")
        return responses.error(403, f"{holder.title} may use no model.", "model_forbidden")

    def limit_by(self, make: Callable[[str, Allowance, float], KeyLimits]) -> None:
        """Have limits made from a key's or tenant's id, its allowance and the monotonic time."""
        if self.keyring is not None:
            self.keyring.make_limits = make
        if self.tokens is not None:
            self.tokens.make_limits = make

    def count_elsewhere(self, spent: Callable[[str, float], float]) -> None:
        """Have budgets of a day count what `spent` returns, by a key's or tenant's id and the Unix
        time; they are one for all routers then. Call it before the files are read."""
        self._elsewhere = spent
        if self.keyring is not None:
            self.keyring.whole_day = True
        if self.tokens is not None:
            self.tokens.whole_day = True

    def share(self, routers: int) -> bool:
        """Divide limits by another number of routers; False where it is the same one."""
        if self._routers == routers:
            return False
        self._routers = routers
        if self.keyring is not None:
            self.keyring.share(routers)
        if self.tokens is not None:
            self.tokens.share(routers)
        return True

    def _refused(self, tenant: str, reason: str) -> None:
        refusals = self.refusals
        if (tenant, reason) not in refusals and len(refusals) >= MAX_REFUSED_TENANTS:
            tenant = OTHERS
        refusals[tenant, reason] += 1

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
            self._refused(key.tenant, "forbidden")
            raise RefusalError(forbidden(holder, name))
        unix = time.time()
        if self._elsewhere is not None:
            holder.limits.elsewhere = self._elsewhere(holder.id, unix)
        excess = holder.limits.admit(prompt + output, time.monotonic(), unix)
        if excess is not None:
            self._refused(key.tenant, excess.limit.value)
            raise RefusalError(_exceeded(holder, excess))
        return Ticket(
            prompt,
            output,
            tenant=key.tenant,
            key_id=holder.id,
            priority=key.priority,
            weight=key.weight,
            limits=holder.limits,
            admitted=unix,
            ends=holder.rights.ends,
        )

    def _keys_read(self, good: bool) -> None:
        self.reads["ok" if good else "refused"] += 1
        self._reported(good)


def forbidden(holder: Holder, name: str) -> Answer:
    """Refuse a model that the key may not use, without telling whether there is one."""
    by = "" if holder.rights.models is None else " with this access token's permissions"
    return responses.error(
        403,
        f"{holder.title} may not use model `{name[:256]}`{by}; /v1/models lists what it may.",
        "model_forbidden",
        "model",
    )


def _exceeded(holder: Holder, excess: Excess) -> Answer:
    allowed = _MESSAGES[excess.limit].format(f"{excess.allowed:g}")
    seconds = max(ceil(excess.seconds), 1) if isfinite(excess.seconds) else DAY
    return responses.error(
        429,
        f"{holder.title} may use {allowed} here; try again in {seconds} s.",
        "insufficient_quota" if excess.limit is Limit.BUDGET else "rate_limit_exceeded",
        retry_after=seconds,
    )


def bad_token(error: TokenError) -> Answer:
    """Refuse a token: 401 for what a new token may mend, 403 for a tenant that has no access or a
    token that permits nothing, 503 while the router cannot tell."""
    message = str(error)
    if error.reason in (Reason.NO_KEYS, Reason.FULL):
        return responses.error(503, message, error.reason.value, retry_after=1)
    if error.reason is Reason.TENANT:
        return responses.error(403, message, "tenant_forbidden")
    if error.reason is Reason.CLAIM:
        return responses.error(403, message, "claim_forbidden")
    status, code = (403, "insufficient_scope") if error.reason is Reason.SCOPE else _INVALID
    return responses.bearer_refusal(status, message, code, code)
