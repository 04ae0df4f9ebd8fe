"""A cluster's certificates and kubeconfigs, made with openssl in about half a second."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path

from harness.commands import run

DAYS = "30"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority whose keys, certificates and kubeconfigs lie in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"

    def create(self) -> None:
        """Make the authority, and the key that signs service account tokens (sa.key, sa.pub)."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
        run(
            *("openssl", "req", "-x509", *CURVE, "-keyout", self.key, "-out", self.certificate),
            *("-days", DAYS, "-sha256", "-subj", "/CN=kvasir-e2e"),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", usage),
        )
        run("openssl", "genrsa", "-out", self.path("sa.key"), "2048")
        run("openssl", "rsa", "-in", self.path("sa.key"), "-pubout", "-out", self.path("sa.pub"))

    def path(self, name: str) -> Path:
        """A file of the authority's directory."""
        return self.directory / name

    def issue(self, name: str, subject: str, names: Sequence[str] = ()) -> None:
        """NAME.crt and NAME.key for client and server; `names` as openssl has them (IP:, DNS:)."""
        extensions = [
            "basicConstraints=CA:FALSE",
            "keyUsage=digitalSignature",
            "extendedKeyUsage=serverAuth,clientAuth",
        ]
        if names:
            extensions.append(f"subjectAltName={','.join(names)}")
        request, extra = self.path(f"{name}.csr"), self.path(f"{name}.ext")
        extra.write_text("\n".join(extensions) + "\n")
        key, certificate = self.path(f"{name}.key"), self.path(f"{name}.crt")
        run("openssl", "req", "-new", *CURVE, "-keyout", key, "-subj", subject, "-out", request)
        run(
            *("openssl", "x509", "-req", "-in", request, "-CA", self.certificate),
            *("-CAkey", self.key, "-CAcreateserial", "-days", DAYS, "-sha256"),
            *("-extfile", extra, "-out", certificate),
        )
        request.unlink()
        extra.unlink()

    def kubeconfig(self, name: str, server: str, *, token: str | None = None) -> Path:
        """NAME.kubeconfig for `server`: with NAME's certificate, or with a token."""
        user = {"token": token} if token else self._client(name)
        cluster = {"server": server, "certificate-authority-data": _base64(self.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "kvasir-e2e",
            "clusters": [{"name": "kvasir-e2e", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [
                {"name": "kvasir-e2e", "context": {"cluster": "kvasir-e2e", "user": name}}
            ],
        }
        path = self.path(f"{name}.kubeconfig")
        # JSON is YAML; only the owner may read what it authenticates with.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(content, file, indent=1)
        return path

    def _client(self, name: str) -> dict[str, str]:
        return {
            "client-certificate-data": _base64(self.path(f"{name}.crt")),
            "client-key-data": _base64(self.path(f"{name}.key")),
        }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
