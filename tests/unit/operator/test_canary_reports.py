"""The sum of what routers have counted of a canary; one that is silent or odd is left out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from harness.streams import serving
from kvasir.wire.canary_samples import CanarySamples, RevisionSamples
from kvasir_operator.canary_reports import FRESH_SECONDS, CanaryReports
from kvasir_operator.settings import OperatorSettings


def told(split: str, answers: int, model: str = "m") -> tuple[int, bytes]:
    one = RevisionSamples(answers=answers, ttft={7: answers})
    report = CanarySamples(split, one, one).report()
    return 200, json.dumps({"models": {model: report}}).encode()


class Routers:
    """Routers on addresses of their own, each with its answer, and a clock."""

    def __init__(self, **answers: tuple[int, bytes]) -> None:
        self.answers = answers
        self.asked = 0
        self.now = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"GET /canaries ")
            self.asked += 1
            address = writer.get_extra_info("sockname")[0].replace("127.0.0.", "r")
            status, body = self.answers[address]
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
            writer.write(body)
            await writer.drain()
        finally:
            writer.close()

    def pods(self) -> list[dict[str, Any]]:
        return [
            {"metadata": {"name": it}, "status": {"podIP": it.replace("r", "127.0.0.")}}
            for it in self.answers
        ]

    async def ask(self, *splits: str, model: str = "m", later: float = 0.0) -> list[Any]:
        async with serving(self.serve, "0.0.0.0") as port:
            settings = OperatorSettings(router_admin_port=port)
            reports = CanaryReports(self.pods, settings, lambda: self.now)
            found = []
            for split in splits:
                found.append(await reports.ask(model, split))
                self.now += later
            await reports.close()
            return found


async def test_what_all_routers_have_counted_adds_up() -> None:
    [found] = await Routers(r1=told("a", 3), r2=told("a", 4)).ask("a")
    assert (found.canary.answers, found.stable.answers) == (7, 7)
    assert found.canary.ttft == {7: 7}


async def test_a_router_that_has_not_heard_of_the_split_yet_is_left_out() -> None:
    [found] = await Routers(r1=told("a", 3), r2=told("b", 4)).ask("b")
    assert found.canary.answers == 4


@pytest.mark.parametrize(
    "answer",
    [
        (503, b"{}"),
        (404, b""),
        (200, b"no json"),
        (200, b"[]"),
        (200, b'{"models": 3}'),
        (200, b'{"models": {"m": 3}}'),
        (200, b'{"models": {"m": {"split": "a", "canary": {}, "stable": {}}}}'),
    ],
)
async def test_an_odd_answer_is_left_out(answer: tuple[int, bytes]) -> None:
    [found] = await Routers(r1=told("a", 3), r2=answer).ask("a")
    assert found.canary.answers == 3


async def test_nothing_counted_is_nothing() -> None:
    assert await Routers(r1=told("a", 0)).ask("a") == [None]
    assert await Routers(r1=told("a", 3)).ask("a", model="other") == [None]
    assert await Routers().ask("a") == [None]


async def test_looks_at_one_time_share_an_asking() -> None:
    routers = Routers(r1=told("a", 3))
    await routers.ask("a", "a", "a", later=FRESH_SECONDS / 10)
    assert routers.asked == 1
    await routers.ask("a", "a", later=FRESH_SECONDS)
    assert routers.asked == 3
