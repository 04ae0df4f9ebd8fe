"""The whole process is tests/integration/engine/serve's; here, its listener and its HTTP server."""

from __future__ import annotations

import signal
import socket

from starlette.applications import Starlette

from kvasir_engine.server.process.api import listen, make_server


def test_processes_share_a_port() -> None:
    with listen("127.0.0.1", 0) as one:
        port = one.getsockname()[1]
        with listen("127.0.0.1", port) as other:
            assert other.getsockname()[1] == port
            assert not other.getblocking()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass


def test_an_ipv6_address_is_listened_on() -> None:
    with listen("::1", 0) as listener:
        assert listener.family == socket.AF_INET6


def test_the_server_leaves_signals_to_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with make_server(Starlette()).capture_signals():
        assert signal.getsignal(signal.SIGTERM) is before
