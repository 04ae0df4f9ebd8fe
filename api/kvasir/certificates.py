"""TLS certificates of a server, checked when they are read."""

from __future__ import annotations

import ssl
from pathlib import Path

_OPENSSL = {
    "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it holds no certificate in PEM",
    "BAD_DECRYPT": "the key is encrypted; give it decrypted",
    "BAD_PASSWORD_READ": "the key is encrypted; give it decrypted",
}
"""By OpenSSL's reason."""


class TlsError(Exception):
    """Certificate files that cannot be used; one sentence on which and why."""


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server that shows the chain `cert` (PEM). Raises TlsError."""
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
        raise TlsError(
            f"cannot use certificate {cert} with key {key}: {explain_tls_error(error)}"
        ) from None
    return context


def explain_tls_error(error: OSError) -> str:
    """Return the reason in words: OpenSSL's come with places in its sources."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    words = (error.reason or "").replace("_", " ").lower()
    return _OPENSSL.get(error.reason or "", words or "this is no PEM file")
