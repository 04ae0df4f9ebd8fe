"""GET /progress over HTTP, for who waits for the download."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from kvasir.models.download.tracker import Tracker

_CLIENT_SECONDS = 5.0


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_SECONDS
    server_version = "kvasir"
    sys_version = ""
    tracker: Tracker

    def do_GET(self) -> None:
        """Answers /progress."""
        known = self.path == "/progress"
        body = self.tracker.read().as_json() if known else '{"error": "there is only /progress"}'
        content = body.encode()
        self.send_response(200 if known else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Polls are no news."""


class _Server(HTTPServer):
    """HTTP server of one request at a time: only one client asks, and a slow one is cut off."""

    def __init__(self, host: str, port: int, tracker: Tracker) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), type("Handler", (_Handler,), {"tracker": tracker}))

    def server_bind(self) -> None:
        """Listen on IPv4 as well where the address is every IPv6 one."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def handle_error(self, *_: object) -> None:
        """A client that went away is no news either."""


@contextmanager
def serving(tracker: Tracker, host: str, port: int) -> Iterator[int]:
    """Serve /progress at `host`:`port` meanwhile; yield the port. Raises OSError."""
    try:
        server = _Server(host, port, tracker)
    except OSError:
        if host != "::":
            raise
        server = _Server("0.0.0.0", port, tracker)  # a machine without IPv6
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
