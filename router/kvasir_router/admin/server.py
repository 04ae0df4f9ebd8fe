"""The admin port: health, metrics, and the fleet as the router sees it."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Response

from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.metrics import CONTENT_TYPE
from kvasir_router.proxy.gateway import Gateway


def make_admin_app(gateway: Gateway) -> FastAPI:
    """The application on the admin port, for operators and probes; not for clients."""
    app = FastAPI(title="Kvasir router admin", docs_url=None, redoc_url=None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process is alive and its loop turns."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready(response: Response) -> dict[str, str]:
        """At least one model has a ready replica, and the router is not stopping."""
        response.status_code = 200 if gateway.ready else 503
        return {"status": "ready" if gateway.ready else "not ready"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics.text(), media_type=CONTENT_TYPE.decode())

    @app.get("/debug/fleet")
    async def fleet() -> dict[str, Any]:
        """Every model with its replicas: health, load and failures."""
        return {"models": [_model(model) for model in gateway.fleet.models.values()]}

    return app


def _model(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "aliases": list(model.spec.aliases),
        "ready": model.ready,
        "replicas": [_replica(replica) for replica in model.replicas.values()],
    }


def _replica(replica: Replica) -> dict[str, Any]:
    return {
        "id": replica.id,
        "address": replica.pool.authority,
        "health": replica.health.value,
        "breaker": replica.breaker.state.value,
        "draining": replica.draining,
        "in_flight": replica.in_flight,
        "served": replica.served,
        "failures": dict(replica.failures),
        "max_model_len": replica.max_model_len,
    }


class AdminServer(uvicorn.Server):
    """uvicorn in the router's loop; signals stay the router's."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            uvicorn.Config(
                make_admin_app(gateway), log_config=None, access_log=False, lifespan="off"
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_on(self, sock: socket.socket) -> None:
        """Serve until `should_exit` is set."""
        await self.serve(sockets=[sock])
