"""API keys: what each may do, kept in a file that holds no key itself.

    keys:
      - id: 3f9a2c51b07e
        hash: 8c6f...          # of the key; the key is shown once, when it is made
        tenant: team-a
        models: [llama, "qwen*"]
        requests_per_minute: 600
        tokens_per_minute: 200000
        tokens_per_day: 50000000
        priority: interactive
        weight: 2

Where the file itself is kept secret, an entry may hold the `key` instead of its hash, as that of a
Helm release does; `kvasir keys` replaces it when it writes the file anew.

The hash is BLAKE2b-256 with a personal string of our own. A slow password hash would be the wrong
tool: it protects secrets that can be guessed, and a key is 256 random bits, which no speed of
hashing helps to guess; while its cost would be paid by each request. For the same reason a salt
would add nothing. A key is found by its hash in a dictionary: what time the lookup takes depends
on hashes, which a caller cannot steer, and so tells nothing of another key.
"""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from kvasir_router.admission.limits import Allowance
from kvasir_router.admission.ticket import Priority
from kvasir_router.yaml_file import read_yaml

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_KEYS = 50_000
PREFIX = "kv-"
EVERY_MODEL = "*"

_unused_hash = hashlib.blake2b(digest_size=32, person=b"kvasir.api-key")
_HASH = r"^[0-9a-f]{64}$"
_KEY = re.compile(r"[A-Za-z0-9._~-]{16,256}")
_MODEL = re.compile(r"[^\x00-\x20\x7f*]*\*?")


def _checked_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in value:
        if not pattern or not _MODEL.fullmatch(pattern):
            raise ValueError(f"{pattern!r} must be a model's name, or its beginning with a `*`")
    return value


ModelPatterns = Annotated[tuple[str, ...], AfterValidator(_checked_patterns)]
"""Names of models, or beginnings of names with `*` after them."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}$")]
Positive = Annotated[float, Field(gt=0, le=1e15)]


def hash_key(key: bytes) -> str:
    """Return the digest that the file holds instead of the key: 64 hexadecimal digits."""
    made = _unused_hash.copy()
    made.update(key)
    return made.hexdigest()


def is_token(credential: bytes) -> bool:
    """Return True for what has the form of a JWT (RFC 7519) and so is never taken for a key: parts
    divided by dots, the first of which is a JSON object in Base64."""
    return credential[:2] in (b"ey", b"ew") and credential.count(b".") > 1


def make_key() -> str:
    """256 random bits, in the alphabet of URLs."""
    return PREFIX + secrets.token_urlsafe(32)


class Grant(BaseModel):
    """Permissions and limits. A limit that is left out is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: Name = "default"
    """Owner. The keys of one tenant share its part of a busy model."""
    models: ModelPatterns = (EVERY_MODEL,)
    """Models that it may use: names, or beginnings of names with `*` after them."""
    requests_per_minute: Positive | None = None
    """Requests in a minute."""
    tokens_per_minute: Positive | None = None
    """Prompt and output tokens in a minute."""
    tokens_per_day: Positive | None = None
    """Prompt and output tokens of a day, from 00:00 to 00:00 UTC."""
    priority: Priority = Priority.DEFAULT
    """Class of its requests in the queue; the classes are served in this order."""
    weight: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    """The tenant's share of a busy model, relative to others'."""

    @field_validator("priority", mode="before")
    @classmethod
    def _priority_by_name(cls, value: Any) -> Priority:
        try:
            return Priority[value.upper()]
        except (AttributeError, KeyError):
            names = ", ".join(each.name.lower() for each in Priority)
            raise ValueError(f"{value!r} is no priority; use one of {names}") from None

    @property
    def allowance(self) -> Allowance:
        return Allowance(self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day)


class KeyIdentity(BaseModel):
    """Name and hash of a key."""

    id: Name
    """Name of the key in logs, metrics and lists."""
    hash: Annotated[str, Field(pattern=_HASH)]
    """BLAKE2b-256 of the key, 64 hexadecimal digits."""


class ApiKey(Grant, KeyIdentity):  # the identity's fields come first
    """One entry of the file. A limit that is left out is none."""

    @model_validator(mode="before")
    @classmethod
    def _hash_of_key(cls, entry: Any) -> Any:
        if not isinstance(entry, dict) or "key" not in entry:
            return entry
        key = entry["key"]
        if "hash" in entry:
            raise ValueError("give the key or its hash, not both")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError("key must be 16 to 256 letters, digits, '-', '_', '.' or '~'")
        if is_token(key.encode()):
            raise ValueError("key has the form of an access token (JWT); use another one")
        rest = {field: value for field, value in entry.items() if field != "key"}
        return {**rest, "hash": hash_key(key.encode())}

    def dump(self) -> dict[str, Any]:
        """As in the file: what is left out has its default."""
        entry = self.model_dump(mode="json", exclude_defaults=True)
        if self.priority is not Priority.DEFAULT:
            entry["priority"] = self.priority.name.lower()
        return entry


class KeyFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: Annotated[tuple[ApiKey, ...], Field(max_length=MAX_KEYS)] = ()
    """Keys that clients may send."""

    @model_validator(mode="after")
    def _unique(self) -> Self:
        ids: set[str] = set()
        hashes: set[str] = set()
        for key in self.keys:
            if key.id in ids:
                raise ValueError(f"id {key.id!r} is used twice")
            if key.hash in hashes:
                raise ValueError(f"the key of id {key.id!r} is in the file twice")
            ids.add(key.id)
            hashes.add(key.hash)
        return self


def read_keys(path: Path) -> KeyFile:
    """Raises YamlFileError."""
    return read_yaml(path, "key file", KeyFile, MAX_FILE_BYTES)


def dump_keys(file: KeyFile) -> bytes:
    """The file's text."""
    content = {"keys": [key.dump() for key in file.keys]}
    return yaml.safe_dump(content, sort_keys=False, width=1000).encode()
