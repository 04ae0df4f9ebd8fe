"""Authentication of callers: API keys of clients, the fleet secret of routers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER, FleetSecret
from kvasir.wire.fleet_secret_file import FleetSecretFile

_FLEET_HEADER = FLEET_SECRET_HEADER.encode()


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


class Keyring:
    """API keys and the fleet's secrets, as hashes that are compared in constant time."""

    def __init__(self, api_keys: Iterable[str], fleet_secret: FleetSecretFile) -> None:
        self._keys = [_digest(key.encode()) for key in api_keys]
        self._fleet_secret = fleet_secret
        self._fleet: list[bytes] = []
        self._fleet_of: FleetSecret | None = None
        """Secrets that `_fleet` was made of."""

    @property
    def has_fleet(self) -> bool:
        """True if there is a fleet secret: what only routers may do is theirs alone."""
        return bool(self._fleet_secret.now.accepted)

    def is_fleet(self, headers: dict[bytes, bytes]) -> bool:
        """True for a caller that sent one of the fleet's secrets."""
        sent = headers.get(_FLEET_HEADER)
        now = self._fleet_secret.now
        if now is not self._fleet_of:
            self._fleet_of, self._fleet = now, [_digest(it.encode()) for it in now.accepted]
        return sent is not None and _is_one_of(_digest(sent), self._fleet)

    def admits(self, headers: dict[bytes, bytes]) -> bool:
        """True when no key is asked for or one of them came as a bearer token, or in x-api-key."""
        if not self._keys:
            return True
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            token = headers.get(b"x-api-key", b"")
        return _is_one_of(_digest(token.strip()), self._keys)


def _is_one_of(sent: bytes, known: list[bytes]) -> bool:
    # Every one is compared, so that the time does not tell which one is near.
    return sum(hmac.compare_digest(sent, each) for each in known) > 0
