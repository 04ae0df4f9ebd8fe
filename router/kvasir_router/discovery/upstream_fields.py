"""Fields of a replica in a discovery file that make it an upstream URL: a server of others."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvasir.base_url import BaseURL, parse_base_url
from kvasir.certificates import TlsError
from kvasir.regular_files import read_regular_file
from kvasir_router.discovery.specs import Upstream
from kvasir_router.wire.tls import context_for

MAX_KEY = 4096
"""Characters of an upstream's key."""
_MAX_AUTHORITIES = 1 << 20

KeyHeader = Literal["authorization", "x-api-key", "api-key"]
HealthPath = Annotated[str, Field(pattern=r"^/[!-~]{0,1023}$")]


class UpstreamError(ValueError):
    """A file or variable of an upstream cannot be used; the message says no word of a key."""


class UpstreamFields(BaseModel):
    """Fields of which one, or a path in `url`, says that the server is none of the fleet's: it is
    told no secret, and of a request's headers only those that it needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(max_length=2048)]
    """Base URL of the form `http(s)://HOST[:PORT][/PATH]`; https holds for the gRPC port too. A
    path makes it an upstream: it stands in the place of `/v1`."""
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Upstream's own name of the model, which is written into requests."""
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")] | None = None
    """Environment variable of the router that holds the upstream's key."""
    key_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """File that holds the upstream's key; read again when it changes."""
    key_header: KeyHeader = "authorization"
    """Header of the key: `authorization` (as a bearer token), `x-api-key` or `api-key`."""
    ca_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Certificates of authorities (PEM) that may have signed the upstream's; by default the
    router's own."""
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,253}$")] | None = None
    """Name in the upstream's certificate, where it is not the URL's host."""
    health_path: HealthPath | None = None
    """Path that answers 200 while the upstream serves; by default only requests tell."""

    @property
    def parsed(self) -> BaseURL:
        """Raises ValueError."""
        return parse_base_url(self.url)

    @property
    def is_upstream(self) -> bool:
        """Return whether it is a server of others."""
        has_path = self.url.rstrip("/").count("/") > 2
        said = self.model_fields_set & UpstreamFields.model_fields.keys()
        return has_path or bool(said - {"url"})

    def check_upstream(self) -> None:
        """Raises ValueError for fields that do not go together."""
        if self.key_env is not None and self.key_file is not None:
            raise ValueError("key_env and key_file are given; leave one out")
        tls = self.parsed.tls
        for name, value in (("ca_file", self.ca_file), ("server_name", self.server_name)):
            if value is not None and not tls:
                raise ValueError(f"{name} is of no use without TLS; write https:// in url")

    def upstream(self) -> Upstream | None:
        """Return what it wants of requests, with the key as it is now. Raises UpstreamError."""
        if not self.is_upstream:
            return None
        return Upstream(
            self.parsed.prefix,
            self.model or "",
            self._key(),
            self.key_header,
            self._authorities(),
            self.server_name or "",
            self.health_path or "",
        )

    def files(self) -> tuple[Path, ...]:
        """Return the files that it is read from."""
        return tuple(Path(each) for each in (self.key_file, self.ca_file) if each is not None)

    def _key(self) -> str:
        if self.key_env is not None:
            return checked_key(os.environ.get(self.key_env, ""), f"variable {self.key_env}")
        if self.key_file is not None:
            return checked_key(_read(self.key_file, MAX_KEY + 2), f"file {self.key_file}")
        return ""

    def _authorities(self) -> str:
        if self.ca_file is None:
            return ""
        text = _read(self.ca_file, _MAX_AUTHORITIES)
        try:
            context_for(text)
        except TlsError as error:
            raise UpstreamError(f"ca_file {self.ca_file}: {error}") from None
        return text


def checked_key(text: str, where: str) -> str:
    """Return the key without white space around it. Raises UpstreamError for one that is none."""
    key = text.strip()
    if not key:
        raise UpstreamError(f"{where} holds no key; put the upstream's there")
    if len(key) > MAX_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        raise UpstreamError(
            f"{where} holds no key that a header can carry: one line of up to {MAX_KEY} printable"
            " ASCII characters without spaces"
        )
    return key


def _read(path: str, most: int) -> str:
    try:
        text = read_regular_file(Path(path), most)
        if len(text) > most:
            raise UpstreamError(f"file {path} is larger than {most} bytes")
        return text.decode()
    except OSError as error:
        raise UpstreamError(f"cannot read file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UpstreamError(f"file {path} is not UTF-8 text") from None
