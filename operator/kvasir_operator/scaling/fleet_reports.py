"""Ask every Ready router for the signals of all its models, in one request each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import httpx

from kvasir.kube.objects import Object, name_of
from kvasir_operator.external_metrics.router_reports import NoReportError
from kvasir_operator.pod_http import FleetProof, NoAnswerError, ask
from kvasir_operator.settings import OperatorSettings

ANSWER_SECONDS = 3.0
"""Time that a router has for its answer."""
_MAX_BYTES = 4 << 20

Report = Mapping[str, Any]


class FleetReports:
    """Client of the Ready routers' /scaling; use as an async context manager."""

    def __init__(self, routers: Callable[[], list[Object]], settings: OperatorSettings) -> None:
        self._routers = routers
        self._port = settings.router_admin_port
        self._client = httpx.AsyncClient(
            timeout=ANSWER_SECONDS, trust_env=False, auth=FleetProof(settings.fleet_secret)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def ask(self) -> dict[str, list[Report]]:
        """Return the reports of each model from every router that knows it.

        Raises NoReportError unless every Ready router answers: a part of the load would scale
        models down.
        """
        routers = self._routers()
        if not routers:
            raise NoReportError("no router is Ready")
        found: dict[str, list[Report]] = {}
        for models in await asyncio.gather(*map(self._ask, routers)):
            for model, report in models.items():
                found.setdefault(model, []).append(report)
        return found

    async def _ask(self, router: Object) -> dict[str, Report]:
        name = name_of(router)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status, body = await ask(self._client, router, self._port, "/scaling", _MAX_BYTES)
            if status != httpx.codes.OK:
                raise NoReportError(f"router {name} answers {status}")
            models = json.loads(body)["models"]
        except (NoAnswerError, TimeoutError, ValueError, KeyError, TypeError) as error:
            why = str(error) or type(error).__name__
            raise NoReportError(f"router {name} does not answer: {why}") from error
        if not isinstance(models, dict) or not all(isinstance(it, dict) for it in models.values()):
            raise NoReportError(f"router {name} sent no reports of models")
        return models
