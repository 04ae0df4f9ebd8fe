"""Model server that offers one model as a Hugging Face hub and as a container registry do, without
TLS."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from harness import network

REPOSITORY = "org/tiny"
TAG = "v1"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_TITLE = "org.opencontainers.image.title"


class ModelServer:
    """`files` of the model by name; `reads` counts the bodies that each path was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.reads: Counter[str] = Counter()
        self.port = 0
        self._digests = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
        self.commit = hashlib.sha1(json.dumps(self._digests).encode()).hexdigest()

    @property
    def host(self) -> str:
        """HOST:PORT as pods reach it."""
        return f"{network.HOST}:{self.port}"

    def reads_of(self, name: str) -> dict[str, int]:
        """Return how often a file was read, from the hub and from the registry."""
        return {
            "hub": self.reads[f"/{REPOSITORY}/resolve/{self.commit}/{name}"],
            "registry": self.reads[f"/v2/{REPOSITORY}/blobs/sha256:{self._digests[name]}"],
        }

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Media type and body; None for what is not there."""
        hub, registry = f"/{REPOSITORY}/resolve/{self.commit}/", f"/v2/{REPOSITORY}/"
        if path in (f"/api/models/{REPOSITORY}", f"/api/models/{REPOSITORY}/revision/main"):
            return "application/json", json.dumps(self._info()).encode()
        if path.startswith(hub):
            body = self.files.get(path.removeprefix(hub))
        elif path == f"{registry}manifests/{TAG}":
            return _MANIFEST, json.dumps(self._manifest()).encode()
        else:
            blobs = {f"{registry}blobs/sha256:{each}": name for name, each in self._digests.items()}
            body = self.files.get(blobs.get(path, ""))
        return None if body is None else ("application/octet-stream", body)

    def _info(self) -> dict[str, Any]:
        siblings = [
            {
                "rfilename": name,
                "size": len(body),
                "lfs": {"sha256": self._digests[name], "size": len(body), "pointerSize": 130},
            }
            for name, body in self.files.items()
        ]
        return {"id": REPOSITORY, "sha": self.commit, "siblings": siblings}

    def _manifest(self) -> dict[str, Any]:
        layers = [
            {
                "mediaType": "application/octet-stream",
                "digest": f"sha256:{self._digests[name]}",
                "size": len(body),
                "annotations": {_TITLE: name},
            }
            for name, body in self.files.items()
        ]
        return {"schemaVersion": 2, "mediaType": _MANIFEST, "layers": layers}


@contextmanager
def serving(directory: Path) -> Iterator[ModelServer]:
    """A server of the files in `directory`, on the cluster's network."""
    server = ModelServer({path.name: path.read_bytes() for path in directory.iterdir()})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            found = server.answer(path)
            media, body = found or ("text/plain", b"")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                server.reads[path] += 1
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer((network.HOST, 0), Handler)
    server.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
