"""Routes for those who operate the server: health, readiness, load, metrics, version."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request
from starlette.responses import Response

from kvasir import __version__
from kvasir_engine.metric_registry import CONTENT_TYPE
from kvasir_engine.server.http.routes import json_response
from kvasir_engine.server.lifecycle import ServerPhase
from kvasir_engine.server.server_state import ServerState


class OpsRoutes:
    """Handlers over one ServerState; none of them waits for the core."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def health(self, request: Request) -> Response:
        """Tell whether the engine can serve, as vLLM does: also while it drains, not while the
        model still loads."""
        if self._state.client.alive and self._state.lifecycle.info is None:
            return json_response({"status": ServerPhase.STARTING.value}, 503)
        return await self.live(request)

    async def live(self, request: Request) -> Response:
        """Tell whether the core lives and its steps end; 200 also while the model still loads."""
        state = self._state
        if not state.client.alive:
            return json_response({"status": "dead"}, 503)
        load = state.client.load()
        age = max(load.step_age_seconds, load.turn_age_seconds)
        stuck = age > state.settings.stuck_after
        content = {"status": "stuck" if stuck else "ok", "step_age_seconds": round(age, 3)}
        return json_response(content, 503 if stuck else 200)

    async def ready(self, request: Request) -> Response:
        """Tell whether new requests are taken."""
        lifecycle = self._state.lifecycle
        phase = lifecycle.phase
        content = {"status": phase.value}
        if phase is ServerPhase.GPU_FAULT and lifecycle.fault is not None:
            content["reason"] = lifecycle.fault.reason
        return json_response(content, 200 if phase is ServerPhase.READY else 503)

    async def load(self, request: Request) -> Response:
        """Return the whole engine's load, the same from every API process."""
        return json_response(dataclasses.asdict(self._state.client.load()))

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forget all cached prompt blocks, so that a measurement begins without them."""
        self._state.client.reset_prefix_cache()
        return json_response({})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of all processes, in Prometheus' text format."""
        # Read at the scrape: a stopped core would leave the last value it set itself.
        self._state.metrics.step_age.set(self._state.client.load().step_age_seconds)
        content = self._state.metrics.registry.exposition()
        return Response(content, headers={"content-type": CONTENT_TYPE})

    async def version(self, request: Request) -> Response:
        """Return the version."""
        return json_response({"version": __version__})
