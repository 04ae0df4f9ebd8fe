"""When an issuer's keys are fetched, and for how long they are good. Nothing here reads a clock."""

from math import inf

from kvasir_router.admission.access_tokens.issuers import Issuer
from kvasir_router.admission.access_tokens.signing_keys import SigningKeys

ASKED_SECONDS = 10.0
"""Between two fetches for tokens with unknown key ids: anybody can send such."""
_FIRST_RETRY, _MAX_RETRY = 1.0, 60.0


class KeySchedule:
    """One issuer's keys, fetched at once, then every `refresh_seconds`, and earlier when a token
    asks for it. Times are monotonic seconds."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self._keys: SigningKeys | None = None
        self._fetched = -inf
        self._began = -inf
        self._retry = _FIRST_RETRY
        self.due = -inf
        """Time of the next fetch."""
        self.fetching = False
        self._failing = False

    def keys(self, now: float) -> SigningKeys | None:
        """Return the keys; None while there are none, or only ones that are too old."""
        return self._keys if now - self._fetched <= self.issuer.keep_seconds else None

    @property
    def count(self) -> int:
        """Number of keys that were fetched last."""
        return 0 if self._keys is None else len(self._keys)

    def ask(self, now: float) -> bool:
        """Have the keys fetched since a token names one that is not there. Return whether that may
        help: not when it has just been done."""
        if self.fetching:
            return True
        if now - self._began < ASKED_SECONDS:
            return self.due <= now or self._failing
        self.due = min(self.due, now)
        return True

    def begin(self, now: float) -> None:
        """Note that a fetch begins."""
        self.fetching, self._began = True, now

    def fetched(self, keys: SigningKeys, now: float) -> None:
        """Use these keys."""
        self._keys, self._fetched, self.fetching = keys, now, False
        self._failing = False
        self._retry = _FIRST_RETRY
        self.due = now + self.issuer.refresh_seconds

    def failed(self, now: float) -> None:
        """Keep the keys that there are, and try again ever later."""
        self.fetching, self._failing = False, True
        self.due = now + self._retry
        self._retry = min(2 * self._retry, _MAX_RETRY)
