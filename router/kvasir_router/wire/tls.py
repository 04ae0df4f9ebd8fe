"""TLS on both sides: the certificate shown to clients, and the one expected of replicas."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import structlog

from kvasir_router.file_watch import FileWatch

_log = structlog.get_logger("kvasir_router.wire.tls")

_OPENSSL = {
    "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it holds no certificate in PEM",
    "BAD_DECRYPT": "the key is encrypted; give it decrypted",
    "BAD_PASSWORD_READ": "the key is encrypted; give it decrypted",
}
"""By OpenSSL's reason."""


class TlsError(Exception):
    """Certificate files that cannot be used; one sentence on which and why."""


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
        self.context = _server_context(cert, key)

    async def follow(self, reloaded: Callable[[bool], None] = lambda good: None) -> None:
        """Read the files whenever they change, forever; `reloaded` hears whether they were good."""
        async for _ in self._watch.changes():
            try:
                # Tried apart first: a context keeps the half that it could read.
                await asyncio.to_thread(_server_context, self._cert, self._key)
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
        reason = _reason(error)
        raise TlsError(f"cannot read certificate authorities from {ca}: {reason}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _server_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password an encrypted key would be asked for on the terminal.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:
        for path in (cert, key):
            try:
                path.open("rb").close()
            except OSError as missing:
                raise TlsError(f"cannot read {path}: {missing.strerror}") from None
        raise TlsError(f"cannot use certificate {cert} with key {key}: {_reason(error)}") from None
    return context


def _reason(error: OSError) -> str:
    """In words: OpenSSL's come with places in its sources."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    words = (error.reason or "").replace("_", " ").lower()
    return _OPENSSL.get(error.reason or "", words or "this is no PEM file")
