"""Ask the routers for their signals of a model, at most once a second."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import quote

import httpx

from kvasir.kube.objects import Object, name_of
from kvasir_operator.pod_http import FleetProof, NoAnswerError, ask
from kvasir_operator.settings import OperatorSettings

FRESH_SECONDS = 1.0
_ASK_SECONDS = 2.0
_MAX_BYTES = 64 * 1024
_MAX_KEPT = 4096

Reports = list[dict[str, Any]]


class NoReportError(Exception):
    """A router did not report; a sum without it would scale the model down."""


class RouterReports:
    """Client of the Ready routers' /scaling/{model}; use as an async context manager."""

    def __init__(self, routers: Callable[[], list[Object]], settings: OperatorSettings) -> None:
        self._routers = routers
        self._settings = settings
        self._known: dict[str, tuple[float, asyncio.Task[Reports]]] = {}
        self._client = httpx.AsyncClient(
            timeout=_ASK_SECONDS,
            trust_env=False,
            auth=FleetProof(settings.fleet_secret),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for _, task in self._known.values():
            task.cancel()
        await self._client.aclose()

    async def of(self, model: str) -> Reports:
        """Return the report of each router that knows the model, at most a second old.

        Raises NoReportError unless every Ready router answers and one of them knows it.
        """
        now = time.monotonic()
        asked = self._known.get(model)
        if asked is None or now - asked[0] > FRESH_SECONDS:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            asked = self._known[model] = (now, asyncio.create_task(self._ask_all(model)))
        # Shielded: one who leaves does not take the answer from the others.
        return await asyncio.shield(asked[1])

    async def _ask_all(self, model: str) -> Reports:
        routers = self._routers()
        if not routers:
            raise NoReportError("no router is Ready")
        answers = await asyncio.gather(*(self._ask(router, model) for router in routers))
        known = [answer for answer in answers if answer is not None]
        if not known:
            raise NoReportError(f"no router knows the model {model} yet")
        return known

    async def _ask(self, router: Object, model: str) -> dict[str, Any] | None:
        """Return a router's report; None when it does not know the model, so has no requests."""
        port, name = self._settings.router_admin_port, name_of(router)
        path = f"/scaling/{quote(model)}"
        try:
            status, body = await ask(self._client, router, port, path, _MAX_BYTES)
            if status == httpx.codes.NOT_FOUND:
                return None
            if status >= httpx.codes.BAD_REQUEST:
                raise NoReportError(f"router {name} answers {status}")
            report = json.loads(body)
        except (NoAnswerError, ValueError) as error:
            raise NoReportError(f"router {name} does not answer: {error}") from error
        if not isinstance(report, dict):
            raise NoReportError(f"router {name} sent no JSON object")
        return report
