"""Authentication of callers: API keys of clients, the fleet secret of routers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvasir.secret_file import SecretError, SecretFile, Secrets, printable_lines
from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER
from kvasir.wire.fleet_secret_file import FleetSecretFile

_FLEET_HEADER = FLEET_SECRET_HEADER.encode()


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """Keys of a file."""

    accepted: tuple[str, ...] = field(default=(), repr=False)


def parse_api_keys(text: str) -> ApiKeys:
    """Return the keys of a file's text, one a line. Raises SecretError."""
    keys = tuple(dict.fromkeys(printable_lines(text)))
    if not keys:
        raise SecretError("it holds no key; write one a line")
    return ApiKeys(keys)


class ApiKeyFile(SecretFile[ApiKeys]):
    """The file of API keys."""

    name = "file of API keys"
    max_bytes = 64 * 1024
    none = ApiKeys
    parse = staticmethod(parse_api_keys)


class _Digests:
    """Hashes of the secrets that a file holds now."""

    def __init__(self, file: ApiKeyFile | FleetSecretFile) -> None:
        self._file = file
        self._of: Secrets | None = None
        """Secrets that `_made` was made of."""
        self._made: list[bytes] = []

    def __call__(self) -> list[bytes]:
        now = self._file.now
        if now is not self._of:
            self._of, self._made = now, [_digest(it.encode()) for it in now.accepted]
        return self._made


class Keyring:
    """API keys and the fleet's secrets, as hashes that are compared in constant time."""

    def __init__(
        self,
        api_keys: Iterable[str],
        fleet_secret: FleetSecretFile,
        key_file: ApiKeyFile | None = None,
    ) -> None:
        """`api_keys` count beside those of `key_file`."""
        self._keys = [_digest(key.encode()) for key in api_keys]
        self._key_file = key_file or ApiKeyFile()
        self._keys_of_file = _Digests(self._key_file)
        self._fleet = _Digests(fleet_secret)

    @property
    def has_fleet(self) -> bool:
        """True if there is a fleet secret: what only routers may do is theirs alone."""
        return bool(self._fleet())

    def is_fleet(self, headers: dict[bytes, bytes]) -> bool:
        """True for a caller that sent one of the fleet's secrets."""
        sent = headers.get(_FLEET_HEADER)
        return sent is not None and _is_one_of(_digest(sent), self._fleet())

    def admits(self, headers: dict[bytes, bytes]) -> bool:
        """True when no key is asked for or one of them came as a bearer token, or in x-api-key."""
        known = self._keys + self._keys_of_file()
        if not known:
            return not self._key_file.is_file
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            token = headers.get(b"x-api-key", b"")
        return _is_one_of(_digest(token.strip()), known)


def _is_one_of(sent: bytes, known: list[bytes]) -> bool:
    # Every one is compared, so that the time does not tell which one is near.
    return sum(hmac.compare_digest(sent, each) for each in known) > 0
