"""An issuer's public keys (JWKS, RFC 7517), by key id and algorithm."""

from collections.abc import Iterable, Iterator
from typing import Any

import jwt

MAX_KEYS = 64
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_MIN_RSA_BITS, _MAX_RSA_BITS = 2048, 8192
"""Checking a signature costs more than 1 ms above."""


class SigningKeys:
    """The keys of `document` that sign with one of `algorithms`. What is not for that (secrets,
    private keys, keys for encryption, short ones) is left out."""

    def __init__(self, document: Any, algorithms: Iterable[str]) -> None:
        """Raises ValueError with a sentence for what is no JWKS, or has no key of use."""
        entries = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError("it is no JWKS: an object with a list `keys`")
        if len(entries) > MAX_KEYS:
            raise ValueError(f"it has {len(entries)} keys, more than {MAX_KEYS}")
        self._keys: dict[str, dict[str, jwt.PyJWK]] = {}
        """Keys by algorithm and key id."""
        for algorithm in algorithms:
            found = self._keys.setdefault(algorithm, {})
            for key_id, key in _usable(entries, algorithm):
                found.setdefault(key_id, key)
        if not len(self):
            raise ValueError("it has no public key for the algorithms that are allowed")

    def __len__(self) -> int:
        return len({key_id for keys in self._keys.values() for key_id in keys})

    def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Return the key of this id; without an id the only one there is for the algorithm."""
        keys = self._keys.get(algorithm, {})
        if key_id is not None:
            return keys.get(key_id)
        return next(iter(keys.values())) if len(keys) == 1 else None


def _usable(entries: list[Any], algorithm: str) -> Iterator[tuple[str, jwt.PyJWK]]:
    for at, entry in enumerate(entries):
        if not isinstance(entry, dict) or not _fits(entry, algorithm):
            continue
        key_id = entry.get("kid", f"\0{at}")
        if not isinstance(key_id, str) or len(key_id) > 256:
            continue
        try:
            key = jwt.PyJWK(entry, algorithm=algorithm)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            continue  # one bad key is no reason to lose the others
        bits = getattr(key.key, "key_size", 0)
        if entry["kty"] != "RSA" or _MIN_RSA_BITS <= bits <= _MAX_RSA_BITS:
            yield key_id, key


def _fits(entry: dict[str, Any], algorithm: str) -> bool:
    """Return whether the entry says that it is a public key for this algorithm."""
    if entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm or "d" in entry:
        return False
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return False
    kind = entry.get("kty")
    if algorithm[:2] in ("RS", "PS"):
        return kind == "RSA"
    if algorithm in _CURVES:
        return kind == "EC" and entry.get("crv") == _CURVES[algorithm]
    return kind == "OKP" and entry.get("crv") in ("Ed25519", "Ed448")
