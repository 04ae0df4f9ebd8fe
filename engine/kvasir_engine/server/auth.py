"""Authentication of callers: API keys of clients, the fleet secret of routers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER

_FLEET_HEADER = FLEET_SECRET_HEADER.encode()


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


class Keyring:
    """API keys and the fleet secret, held as hashes and compared in constant time."""

    def __init__(self, api_keys: Iterable[str], fleet_secret: str | None) -> None:
        self._keys = [_digest(key.encode()) for key in api_keys]
        self._fleet = None if fleet_secret is None else _digest(fleet_secret.encode())

    def is_fleet(self, headers: dict[bytes, bytes]) -> bool:
        """True for a caller that sent the configured fleet secret."""
        sent = headers.get(_FLEET_HEADER)
        if self._fleet is None or sent is None:
            return False
        return hmac.compare_digest(_digest(sent), self._fleet)

    def admits(self, headers: dict[bytes, bytes]) -> bool:
        """True when no key is asked for or one of them came as a bearer token."""
        if not self._keys:
            return True
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        sent = _digest(token.strip())
        # Every key is compared, so that the time does not tell which one is near.
        return sum(hmac.compare_digest(sent, key) for key in self._keys) > 0
