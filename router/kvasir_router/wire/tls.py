"""TLS on both sides: the certificate shown to clients, and the one expected of replicas."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import structlog

from kvasir.certificates import TlsError, explain_tls_error, server_context
from kvasir_router.file_watch import FileWatch

_log = structlog.get_logger("kvasir_router.wire.tls")


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
        async for _ in self._watch.changes():
            try:
                # Tried apart first: a context keeps the half that it could read.
                await asyncio.to_thread(server_context, self._cert, self._key)
                self.context.load_cert_chain(self._cert, self._key, password="")
            except (TlsError, OSError) as error:
                _log.error("certificate refused, the last good one stays", error=str(error))
                reloaded(False)
            else:
                _log.info("certificate read", file=str(self._cert))
                reloaded(True)


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
