"""/metrics, /healthz and /readyz on one port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from kvasir_operator.controller.metrics import Metrics


@asynccontextmanager
async def serve(
    host: str, port: int, metrics: Metrics, leads: Callable[[], bool]
) -> AsyncIterator[int]:
    """Serve while the context is open; give the port, which is chosen where `port` is 0.

    /healthz answers as long as the event loop turns. /readyz is about the Lease: one that waits
    for it is alive, but not at work.
    """

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def healthy(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        works = leads()
        return web.json_response({"leader": works}, status=200 if works else 503)

    app = web.Application()
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/healthz", healthy)
    app.router.add_get("/readyz", ready)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
