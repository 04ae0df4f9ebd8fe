"""A small model's files, and servers that offer them: a web server and a container registry."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


def safetensors(size: int) -> bytes:
    """A safetensors file with one tensor of `size` random bytes."""
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + random.Random(size).randbytes(size)


def tar_of(files: Files, folder: str = "", compression: str = "gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{compression}") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(folder + path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@dataclass
class Web:
    """A web server's files and what it was asked."""

    files: Files = field(default_factory=dict)
    url: str = ""
    token: str | None = None
    ranges: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range of each GET."""
    cut: list[int] = field(default_factory=list)
    """Each of the next answers ends after so many bytes."""
    fail: list[int] = field(default_factory=list)
    """Status of each of the next answers."""
    stop_at: int | None = None
    """After so many bytes in all, answers stand still until they are let go on."""
    stopped: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    bytes_sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allowed(self, count: int) -> int:
        """How many of `count` bytes may be sent at once."""
        with self._lock:
            if self.stop_at is not None and not self.go_on.is_set():
                count = min(count, self.stop_at - self.bytes_sent)
            self.bytes_sent += count
            return count


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Any

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        wanted = self.headers.get("Range", "")
        if self.command == "GET":
            self.state.requests.append((path, wanted))
            if self.state.fail:
                return self.reply(self.state.fail.pop(0), b"")
        if self.state.token and self.headers.get("Authorization") != f"Bearer {self.state.token}":
            return self.reply(401, b"")
        if path not in self.state.files:
            return self.reply(404, b"")
        return self.send_range(self.state.files[path], wanted if self.state.ranges else "")

    def send_range(self, body: bytes, wanted: str) -> None:
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        headers, status = {"ETag": tag}, 200
        if wanted and self.headers.get("If-Range", tag) == tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body, status = body[start:], 206
        self.reply(status, body, headers)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET" and body:
            if self.state.cut:
                body, self.close_connection = body[: self.state.cut.pop(0)], True
            self.send_body(body)

    def send_body(self, body: bytes) -> None:
        try:
            while body:
                if not (count := self.state.allowed(min(len(body), 10_000))):
                    self.state.stopped.set()
                    self.state.go_on.wait(60)
                self.wfile.write(body[:count])
                body = body[count:]
        except OSError:  # the client was killed
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def run_server(handler: type[Handler], state: Any) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (handler,), {"state": state}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Registry(Web):
    """A container registry: blobs and manifests by digest, tags, and who may read."""

    host: str = ""
    blobs: Files = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Media type and body, by tag and by digest."""
    login: str | None = None
    """user:password that tokens and basic authentication ask for."""
    basic: bool = False
    realm: str = ""
    """Where tokens are given; by default here."""
    tokens: set[str] = field(default_factory=set)
    tokens_last_one_manifest: bool = False

    def push(self, tag: str, layers: list[tuple[bytes, str, dict[str, str]]]) -> str:
        """A manifest of layers: content, media type, annotations. Returns its digest."""
        described = []
        for content, media, notes in layers:
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            self.blobs[digest] = content
            described.append(
                {"mediaType": media, "digest": digest, "size": len(content), "annotations": notes}
            )
        return self.put(tag, {"schemaVersion": 2, "layers": described})

    def put(self, tag: str, manifest: dict[str, Any]) -> str:
        kind = "index" if "manifests" in manifest else "manifest"
        media, body = f"application/vnd.oci.image.{kind}.v1+json", json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[tag] = self.manifests[digest] = (media, body)
        return digest


class RegistryHandler(Handler):
    def do_GET(self) -> None:
        state: Registry = self.state
        url = urlsplit(self.path)
        given = self.headers.get("Authorization", "")
        if url.path == "/token":
            return self.give_token(given)
        if state.basic and given != self.basic_of(state.login):
            return self.reply(401, b"", {"WWW-Authenticate": 'Basic realm="registry"'})
        if not state.basic and given.removeprefix("Bearer ") not in state.tokens:
            address = state.realm or f"http://{state.host}/token"
            realm = f'realm="{address}",service="registry",scope="pull"'
            return self.reply(401, b"", {"WWW-Authenticate": f"Bearer {realm}"})
        kind, name = url.path.split("/")[-2:]
        if self.command == "GET":
            state.requests.append((name, self.headers.get("Range", "")))
        if kind == "manifests" and name in state.manifests:
            media, body = state.manifests[name]
            assert media in self.headers["Accept"]
            if state.tokens_last_one_manifest and self.command == "GET":
                state.tokens.clear()
            return self.reply(200, body, {"Content-Type": media})
        if kind == "blobs" and name in state.blobs:
            return self.send_range(state.blobs[name], self.headers.get("Range", ""))
        return self.reply(404, b"")

    def give_token(self, given: str) -> None:
        if self.state.login and given != self.basic_of(self.state.login):
            return self.reply(401, b"")
        token = f"token-{random.random()}"
        self.state.tokens.add(token)
        return self.reply(200, json.dumps({"token": token}).encode())

    @staticmethod
    def basic_of(login: str | None) -> str:
        return f"Basic {base64.b64encode((login or '').encode()).decode()}"


def contents(directory: Path) -> Files:
    """Every file in `directory` but the cache's own."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name != "kvasir-model.json"
    }
