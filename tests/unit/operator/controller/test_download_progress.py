"""Asking a download's pod, with a real server on an address of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvasir.models.download.progress import DownloadPhase, Progress
from kvasir.resource import labels
from kvasir_operator.controller.download_progress import Downloads

ADDRESS = "127.0.83.7"


class Server:
    """What a download serves."""

    def __init__(self) -> None:
        self.asked = 0
        self.sent = 0
        self.body = Progress(DownloadPhase.DOWNLOADING, 1, 2).as_json().encode()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                with suppress(ConnectionError):
                    for start in range(0, len(server.body), 1 << 16):
                        server.sent += self.wfile.write(server.body[start : start + (1 << 16)])

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer((ADDRESS, labels.HTTP_PORT), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def pod(uid: str = "u", phase: str = "Running", address: str = ADDRESS) -> dict[str, Any]:
    metadata = {"name": uid, "uid": uid, "labels": {"job-name": f"job-{uid}"}}
    return {"metadata": metadata, "status": {"phase": phase, "podIP": address}}


async def test_a_running_download_is_asked_and_not_too_often(server: Server) -> None:
    downloads = Downloads()
    for _ in range(3):
        found = await downloads.ask([pod(), pod("w", "Pending"), pod("x", "Running", "")])
        assert found == {"job-u": Progress(DownloadPhase.DOWNLOADING, 1, 2)}
    assert server.asked == 1
    await downloads.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"phase": "dancing"}', b"x" * 100_000])
async def test_nonsense_is_no_progress(server: Server, body: bytes) -> None:
    server.body = body
    downloads = Downloads()
    for _ in range(3):
        assert await downloads.ask([pod()]) == {}
    assert server.asked == 1  # one that does not answer is not asked more often
    await downloads.close()


async def test_nobody_there_is_no_progress() -> None:
    downloads = Downloads()
    assert await downloads.ask([pod()]) == {}
    await downloads.close()


async def test_of_an_endless_answer_no_more_is_read_than_there_may_be(server: Server) -> None:
    """The pod of whoever gave it the labels."""
    server.body = b"x" * (64 << 20)
    downloads = Downloads()
    assert await downloads.ask([pod()]) == {}
    assert server.sent < len(server.body)
    await downloads.close()
