"""Routes by which LoRA adapters are loaded and unloaded, with vLLM's names."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from kvasir_engine.server.http.body import read_body
from kvasir_engine.server.large_bodies.shared_body import SharedBody
from kvasir_engine.server.loaded_adapters import LoadBody, UnloadBody
from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai.body_parser import parse_body
from kvasir_engine.server.server_state import ServerState

MAX_BODY_BYTES = 16 * 1024

_Body = TypeVar("_Body", bound=msgspec.Struct)


class AdapterRoutes:
    """Handlers over one ServerState."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def load(self, request: Request) -> Response:
        """Load a LoRA adapter, whose name requests may use from then on.

        A simulated engine takes any; others answer 501 until they have LoRA.
        """
        body = await self._read(request, LoadBody)
        self._state.check_ready()
        self._state.adapters.load(body)
        return _success(f"LoRA adapter {body.lora_name!r} added successfully.")

    async def unload(self, request: Request) -> Response:
        """Unload a LoRA adapter; its requests that run end as they would."""
        body = await self._read(request, UnloadBody)
        self._state.adapters.unload(body)
        return _success(f"LoRA adapter {body.lora_name!r} removed successfully.")

    async def _read(self, request: Request, kind: type[_Body]) -> _Body:
        budget = self._state.body_workers.budget
        body = await read_body(request.scope, request.receive, MAX_BODY_BYTES, budget)
        if isinstance(body, SharedBody):  # no limit lets one be so large
            body.close()
            raise invalid(f"The body is larger than {MAX_BODY_BYTES} bytes.")
        return parse_body(body, kind)


def _success(sentence: str) -> Response:
    return PlainTextResponse(f"Success: {sentence}")
