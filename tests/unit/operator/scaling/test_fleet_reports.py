from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from harness.streams import serving
from kvasir_operator.external_metrics.router_reports import NoReportError
from kvasir_operator.scaling.fleet_reports import FleetReports
from kvasir_operator.settings import OperatorSettings

Answers = dict[str, tuple[int, bytes]]


def told(**models: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"models": models}).encode()


async def ask(answers: Answers) -> dict[str, Any]:
    """Ask routers on addresses of their own, each with its answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"GET /scaling ")
            status, body = answers[writer.get_extra_info("sockname")[0]]
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
            writer.write(body)
            await writer.drain()
        finally:
            writer.close()

    pods = [{"metadata": {"name": it}, "status": {"podIP": it}} for it in answers]
    async with serving(serve, "0.0.0.0") as port:
        settings = OperatorSettings(router_admin_port=port)
        async with FleetReports(lambda: pods, settings) as reports:
            return await reports.ask()


async def test_each_model_has_the_reports_of_those_that_know_it() -> None:
    one, two = told(a={"queue": 1}, b={"queue": 2}), told(b={"queue": 3})
    found = await ask({"127.0.0.1": one, "127.0.0.2": two})
    assert found == {"a": [{"queue": 1}], "b": [{"queue": 2}, {"queue": 3}]}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((503, b"{}"), "router 127.0.0.2 answers 503"),
        ((404, b"{}"), "router 127.0.0.2 answers 404"),
        ((200, b"no json"), "router 127.0.0.2 does not answer: "),
        ((200, b"[]"), "router 127.0.0.2 does not answer: "),
        ((200, b'{"models": 3}'), "router 127.0.0.2 sent no reports of models"),
        ((200, b'{"models": {"a": 3}}'), "router 127.0.0.2 sent no reports of models"),
    ],
)
async def test_a_part_of_the_load_is_none(answer: tuple[int, bytes], why: str) -> None:
    with pytest.raises(NoReportError, match=why):
        await ask({"127.0.0.1": told(a={}), "127.0.0.2": answer})


async def test_without_a_router_nothing_is_known() -> None:
    with pytest.raises(NoReportError, match="no router is Ready"):
        await ask({})
