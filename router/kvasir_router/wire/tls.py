"""TLS on both sides: the certificate shown to clients, and the one expected of replicas."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Self

from kvasir.certificates import TlsError, explain_tls_error, server_context
from kvasir_router.file_watch import FileWatch, FollowedFile


@dataclass(frozen=True, slots=True)
class ReplicaTrust:
    """CA certificates for replicas, in the form gRPC takes."""

    authorities: bytes | None
    """PEM; None = those that gRPC brings, where the system's are in no single file."""

    @classmethod
    @cache
    def of(cls, context: ssl.SSLContext) -> Self:
        """The same as a client's context has."""
        found = context.get_ca_certs(binary_form=True)
        return cls("".join(map(ssl.DER_cert_to_PEM_cert, found)).encode() or None)


class ServerTls:
    """The client port's certificate chain and key (PEM), read again when the files change.

    New connections are shown the new one; a pair that cannot be read, or does not belong
    together, is reported and the last good one stays. Raises TlsError at first.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self._watch = FileWatch(cert, key)
        self._watch.changed()
        self.context = server_context(cert, key)

    async def follow(self, reloaded: Callable[[bool], None] = lambda good: None) -> None:
        """Read the files whenever they change, forever; `reloaded` hears whether they were good."""
        # Tried apart first: a context keeps the half that it could read.
        read = partial(server_context, self._cert, self._key)
        file = FollowedFile("certificate", self._watch, read, reloaded, (TlsError, OSError))
        await file.follow(self._show)

    def _show(self, tried: ssl.SSLContext) -> None:
        self.context.load_cert_chain(self._cert, self._key, password="")


@lru_cache(maxsize=64)
def context_for(authorities: str) -> ssl.SSLContext:
    """Return the context of connections to a server whose certificate one of these `authorities`
    (PEM) has signed. Raises TlsError for none."""
    try:
        context = ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"no certificates of authorities (PEM): {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


@cache
def client_context(ca: Path | None) -> ssl.SSLContext:
    """Return the context of connections to replicas: certificates are checked against the
    authorities in `ca` (PEM), or the system's, which take 40 ms to read. Raises TlsError."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        reason = explain_tls_error(error)
        raise TlsError(f"cannot read certificate authorities from {ca}: {reason}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
