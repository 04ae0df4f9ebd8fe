"""The Open Inference Protocol's routes, under /v2."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kvasir import __version__
from kvasir_engine.server.http.ops_routes import OpsRoutes
from kvasir_engine.server.http.routes import ApiRoutes, json_response
from kvasir_engine.server.oip.infer import INPUT, OUTPUT
from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.server_state import ServerState


class OipRoutes:
    """Handlers over one ServerState."""

    def __init__(self, state: ServerState, api: ApiRoutes, ops: OpsRoutes) -> None:
        self._state = state
        self._api = api
        self._ops = ops

    async def server(self, request: Request) -> Response:
        """Return the server's name and version."""
        return json_response({"name": "kvasir", "version": __version__, "extensions": []})

    async def live(self, request: Request) -> Response:
        """Tell whether the server lives, as /live does."""
        status = (await self._ops.live(request)).status_code
        return json_response({"live": status == 200}, status)

    async def ready(self, request: Request) -> Response:
        """Tell whether new requests are taken, as /ready does."""
        ready = self._state.lifecycle.ready
        return json_response({"ready": ready}, 200 if ready else 503)

    async def model(self, request: Request) -> Response:
        """Return a model's tensors."""
        name = self._name(request)
        return json_response(
            {
                "name": name,
                "versions": [],
                "platform": "kvasir",
                "inputs": [_tensor(INPUT)],
                "outputs": [_tensor(OUTPUT)],
            }
        )

    async def model_ready(self, request: Request) -> Response:
        """Tell whether a model takes new requests."""
        name, ready = self._name(request), self._state.lifecycle.ready
        return json_response({"name": name, "ready": ready}, 200 if ready else 503)

    async def infer(self, request: Request) -> Response:
        """Complete the prompts of one BYTES tensor."""
        name = self._name(request)
        if "inference-header-content-length" in request.headers:
            raise invalid("Tensors in binary are not supported; send the data as JSON.", "inputs")
        return await self._api.generate(request, "infer", model=name)

    def _name(self, request: Request) -> str:
        name: str = request.path_params["name"]
        self._state.check_model(name)
        return name


def _tensor(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [-1]}
