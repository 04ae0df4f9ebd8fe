"""The server's own certificate: an authority that signs once, and what it signed."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)
_BACKDATED = timedelta(hours=1)
"""Clocks differ."""


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate, its key, and the authority that clients check it with; all PEM."""

    chain: bytes
    key: bytes
    authority: bytes

    def load_into(self, context: ssl.SSLContext) -> None:
        """Connections that begin from now on are served with it."""
        # OpenSSL reads them from files only.
        with tempfile.TemporaryDirectory() as directory:
            pair = Path(directory) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(self.chain + self.key)
            context.load_cert_chain(pair)


def make_certificate(names: Sequence[str]) -> ServingCertificate:
    """A certificate for the DNS `names`, of an authority whose key is thrown away."""
    authority_key, key = _key(), _key()
    issuer = _name(f"authority of {names[0]}")
    authority = (
        _builder(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name(names[0]), issuer, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return ServingCertificate(
        chain=certificate.public_bytes(pem),
        key=key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        authority=authority.public_bytes(pem),
    )


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
