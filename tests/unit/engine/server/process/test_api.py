"""The whole process is tests/integration/engine/serve's; here, its listener and its HTTP server."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.certificates import self_signed

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


async def test_it_serves_https_with_a_certificate(tmp_path: Path) -> None:
    pair = self_signed(tmp_path, "engine")

    async def greet(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"hello over {request.url.scheme}")

    server = make_server(Starlette(routes=[Route("/", greet)]), pair)
    with listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        trust = ssl.create_default_context(cafile=pair[0])
        async with httpx.AsyncClient(verify=trust, trust_env=False, timeout=60) as client:
            assert (await client.get(url)).text == "hello over https"
        server.should_exit = True
        await serving
