"""Shared parts of several of the shared package's tests: a free port, a server to talk to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvasir.cli.local.ports import free_ports


@dataclass
class Server:
    """A server that answers as OpenAI's API does, with what a test tells it."""

    url: str = ""
    models: Any = field(default_factory=lambda: ["tiny"])
    events: list[str] = field(default_factory=list)
    """Raw lines of the next answers' bodies; an answer echoes the last message without any."""
    status: int = 200
    body: bytes = b"{}"
    endless: bool = False
    """An answer goes on until the client leaves."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """A client went away before its answer ended."""


def event(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


class _Handler(BaseHTTPRequestHandler):
    state: Server

    def do_GET(self) -> None:
        self.state.headers.append(dict(self.headers))
        models = [m if isinstance(m, dict) else {"id": m} for m in self.state.models]
        self._answer(200, json.dumps({"object": "list", "data": models}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.state.requests.append(body)
        self.state.headers.append(dict(self.headers))
        if self.state.status != 200:
            self._answer(self.state.status, self.state.body)
            return
        self.send_response(200)
        self.end_headers()
        said = body["messages"][-1]["content"]
        end = [] if self.state.endless else ["data: [DONE]"]
        for line in self.state.events or [event(f"you said {said}"), *end]:
            self.wfile.write(f"{line}\n\n".encode())
        try:
            while self.state.endless:
                self.wfile.write((event("more ") + "\n\n").encode())
        except OSError:
            self.state.left.set()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    handler = type("Handler", (_Handler,), {"state": state})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    return free_ports(1)[0]
