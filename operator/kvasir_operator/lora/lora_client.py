"""Requests by which an engine loads and unloads LoRA adapters, as vLLM and SGLang take them."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import httpx

from kvasir.kube.objects import Object, label
from kvasir.resource import labels
from kvasir.resource.engines.engine_types import ENGINE_TYPES
from kvasir.resource.engines.traits import EngineTraits, EngineType
from kvasir.resource.lora.lora_status import MAX_REFUSAL
from kvasir_operator.pod_http import FleetProof, host_of
from kvasir_operator.settings import OperatorSettings

LOAD_SECONDS = 120.0
"""Seconds that an engine may take to read one adapter."""
_CONNECT_SECONDS = 3.0
_MAX_BYTES = 1 << 16
_CONNECTIONS = 32


class LoraRefusedError(Exception):
    """The engine did not load, or unload, an adapter; its own sentence."""

    def __init__(self, sentence: str, *, is_there: bool = False, answered: bool = True) -> None:
        super().__init__(sentence)
        self.is_there = is_there
        """True if an adapter of that name is loaded already."""
        self.answered = answered
        """False if the engine said nothing: it is gone, or stuck."""


class LoraClient:
    """Client of engines' pods; only Kvasir's own get the fleet's secret."""

    def __init__(self, settings: OperatorSettings) -> None:
        times = httpx.Timeout(LOAD_SECONDS, connect=_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=times, limits=limits, trust_env=False)
        self._proof = FleetProof(settings.fleet_secret)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def load(self, pod: Object, name: str, directory: str) -> None:
        """Have the engine load the adapter that lies in `directory`. Raises LoraRefusedError."""
        path = engine_of(pod).lora.load_path
        await self._post(pod, path, {"lora_name": name, "lora_path": directory})

    async def unload(self, pod: Object, name: str) -> None:
        """Have the engine forget an adapter. Raises LoraRefusedError."""
        await self._post(pod, engine_of(pod).lora.unload_path, {"lora_name": name})

    async def _post(self, pod: Object, path: str, body: dict[str, str]) -> None:
        proof = self._proof if engine_of(pod).contract else None
        address = f"http://{host_of(pod)}:{_port(pod)}{path}"
        try:
            async with (
                asyncio.timeout(LOAD_SECONDS),
                self._http.stream("POST", address, json=body, auth=proof) as response,
            ):
                answer = bytearray()
                async for part in response.aiter_bytes():
                    answer += part[: _MAX_BYTES - len(answer)]
                    if len(answer) == _MAX_BYTES:
                        break
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            why = str(error) or type(error).__name__
            told = f"The engine did not answer: {why}"[:MAX_REFUSAL]
            raise LoraRefusedError(told, answered=False) from error
        if response.status_code != 200:
            raise refusal(response.status_code, bytes(answer), path)


def engine_of(pod: Object) -> EngineTraits:
    """Return what is known of the engine in a pod."""
    kind = label(pod, labels.ENGINE_TYPE) or "kvasir"
    known: tuple[EngineType, ...] = get_args(EngineType)
    return next((ENGINE_TYPES[each] for each in known if each == kind), ENGINE_TYPES["custom"])


def refusal(status: int, body: bytes, path: str) -> LoraRefusedError:
    """Return what an engine says by a status that is not 200: OpenAI's error object, vLLM's older
    flat one, SGLang's `error_message`, FastAPI's `detail` or plain text."""
    said = _sentence(body)
    if status in (404, 405) and said in ("", "Not Found", "Method Not Allowed"):
        return LoraRefusedError(
            f"The engine has no {path} (status {status}): it loads no adapters while it runs, or"
            " was started without."
        )
    text = f"{said or 'It gave no reason'} (status {status})"[:MAX_REFUSAL]
    return LoraRefusedError(text, is_there=status == 400 and "already" in said)


def _sentence(body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        found = body.decode(errors="replace")
    for key in ("error", "message", "error_message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    text = found if isinstance(found, str) else ""
    return " ".join("".join(it if it.isprintable() else " " for it in text).split())


def _port(pod: Object) -> int:
    ports: list[dict[str, Any]] = next(
        (
            it.get("ports") or []
            for it in pod["spec"]["containers"]
            if it["name"] == labels.ENGINE_CONTAINER
        ),
        [],
    )
    found = (int(it["containerPort"]) for it in ports if it.get("name") == "http")
    return next(found, labels.HTTP_PORT)
