"""A small server that speaks the Hugging Face hub's protocol."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


@dataclass
class HubRepo:
    """One model: its files, its branches and tags, and the token that a gated one asks for."""

    files: dict[str, bytes]
    refs: tuple[str, ...] = ("main",)
    token: str | None = None

    @property
    def commit(self) -> str:
        """A commit hash that names the content."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@dataclass
class Breakage:
    """Early end of a body: after `sent` bytes the connection is dropped.

    With `stalls`, only once the client has gone, as `reached` tells that it may.
    """

    sent: int
    stalls: bool = False
    reached: threading.Event = field(default_factory=threading.Event)


@dataclass
class Hub:
    """Repositories that the server holds, and what it was asked."""

    repos: dict[str, HubRepo]
    url: str = ""
    downloads: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    """Range headers of the downloads."""
    broken: dict[str, Breakage] = field(default_factory=dict)
    """Breakage that befalls the next download of a file."""
    tokens: set[str | None] = field(default_factory=set)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        owner, name, *rest = parts[2:] if api else parts
        repo = self.hub.repos.get(f"{owner}/{name}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.hub.tokens.add(token)
        if repo is None:
            return self.refuse(401 if token is None else 404, "RepoNotFound")
        kind, revision, *path = rest or ["revision", "main"]
        if repo.token is not None and token != repo.token and kind == "resolve":
            return self.refuse(403, "GatedRepo")
        if revision not in (*repo.refs, repo.commit):
            return self.refuse(404, "RevisionNotFound")
        if kind == "resolve":
            return self.send_file(repo, "/".join(path))
        return self.send_json(_info(f"{owner}/{name}", repo) if kind == "revision" else _tree(repo))

    def send_file(self, repo: HubRepo, path: str) -> None:
        if path not in repo.files:
            return self.refuse(404, "EntryNotFound")
        body, status = repo.files[path], 200
        headers = {
            "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
            "X-Repo-Commit": repo.commit,
            "Accept-Ranges": "bytes",
        }
        if (wanted := self.headers.get("Range", "")).startswith("bytes="):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = int(last or len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{end}/{len(body)}"
            body, status = body[int(first) : end + 1], 206
        breakage = None
        if self.command == "GET":
            self.hub.downloads.append(path)
            self.hub.ranges += [wanted] if wanted else []
            breakage = self.hub.broken.pop(path, None)
        return self.reply(status, body, headers, breakage)

    def send_json(self, content: Any) -> None:
        self.reply(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str) -> None:
        self.reply(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def reply(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        breakage: Breakage | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if breakage is not None:
            self.break_off(body[: breakage.sent], breakage)
        elif self.command == "GET":
            self.wfile.write(body)

    def break_off(self, body: bytes, breakage: Breakage) -> None:
        self.wfile.write(body)
        breakage.reached.set()
        if breakage.stalls:
            self.rfile.read(1)  # returns when the client has closed the connection
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


def _info(name: str, repo: HubRepo) -> dict[str, Any]:
    siblings = [_sibling(path, body) for path, body in repo.files.items()]
    return {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}


def _sibling(path: str, body: bytes) -> dict[str, Any]:
    """A file with its size and blob id; weights are in large file storage, by their SHA-256."""
    blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    known: dict[str, Any] = {"rfilename": path, "size": len(body), "blobId": blob}
    if path.endswith(".safetensors"):
        sha256 = hashlib.sha256(body).hexdigest()
        known["lfs"] = {"sha256": sha256, "size": len(body), "pointerSize": 130}
    return known


def _tree(repo: HubRepo) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
        for path, body in repo.files.items()
    ]


@pytest.fixture(scope="session")
def breakage() -> type[Breakage]:
    """The class Breakage: hub.broken["model.safetensors"] = breakage(sent=10)."""
    return Breakage


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with one open, one gated and one model of another kind."""
    files = {
        "config.json": b"{}",
        "model.safetensors": bytes(range(256)) * 64,
        "tokenizer.json": b"[]",
        "chat_template.jinja": b"{{ messages }}",
        "modeling_extra.py": b"raise SystemExit",
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"again",
        "original/params.json": b"{}",
        "README.md": b"# A model",
    }
    hub = Hub(
        {
            "org/open": HubRepo(files, refs=("main", "v1")),
            "org/gated": HubRepo(files, token="open-sesame"),
            "org/diffuser": HubRepo({"model_index.json": b"{}"}),
        }
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()
