"""Ask the Ready routers what they have counted of canaries, in one request each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping

import httpx
import structlog

from kvasir.kube.objects import Object, name_of
from kvasir.wire.canary_samples import CanarySamples, read_samples, total
from kvasir_operator.pod_http import FleetProof, NoAnswerError, ask
from kvasir_operator.settings import OperatorSettings

ANSWER_SECONDS = 3.0
"""Time that a router has for its answer."""
FRESH_SECONDS = 2.0
"""Several canaries that are looked at within this time share one asking."""
_MAX_BYTES = 4 << 20

_log = structlog.get_logger("kvasir_operator.canary_reports")

_Reports = Mapping[str, object]


class CanaryReports:
    """Client of the Ready routers' /canaries. What a router that is silent has counted is missing
    from the sums: a part of the requests tells the same of two revisions as all of them."""

    def __init__(
        self,
        routers: Callable[[], list[Object]],
        settings: OperatorSettings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routers = routers
        self._settings = settings
        self._now = now
        self._client: httpx.AsyncClient | None = None
        self._asking: asyncio.Task[list[_Reports]] | None = None
        self._asked = 0.0

    async def close(self) -> None:
        """End what is being asked, and close the connections."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, model: str, split: str) -> CanarySamples | None:
        """Return the sum of what the routers have counted of a model under `split`; None if none
        has counted anything."""
        found = []
        for reports in await self._reports():
            if model in reports:
                try:
                    found.append(read_samples(reports[model]))
                except ValueError as error:
                    _log.warning("a router's samples are none", model=model, error=str(error))
        summed = total(split, found)
        counted = summed.canary.requests or summed.stable.requests
        return summed if counted else None

    async def _reports(self) -> list[_Reports]:
        now = self._now()
        if self._asking is None or (self._asking.done() and now - self._asked >= FRESH_SECONDS):
            self._asked = now
            self._asking = asyncio.create_task(self._ask_all())
        # One that waits may be cancelled; the others wait on
        return await asyncio.shield(self._asking)

    async def _ask_all(self) -> list[_Reports]:
        if self._client is None:
            proof = FleetProof(self._settings.fleet_secret)
            self._client = httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False, auth=proof)
        client = self._client
        return list(await asyncio.gather(*(self._ask(client, each) for each in self._routers())))

    async def _ask(self, client: httpx.AsyncClient, router: Object) -> _Reports:
        port = self._settings.router_admin_port
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status, body = await ask(client, router, port, "/canaries", _MAX_BYTES)
            models = json.loads(body)["models"] if status == httpx.codes.OK else {}
        except (NoAnswerError, TimeoutError, ValueError, KeyError, TypeError) as error:
            _log.debug("a router does not answer", router=name_of(router), error=repr(error))
            return {}
        return models if isinstance(models, dict) else {}
