"""Routers are asked each for itself: what one does, or does not do, is not the others'."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.streams import serving
from kvasir.resource import labels
from kvasir_operator.controller.view import ROUTERS, View, index_id
from kvasir_operator.controller.view import WATCHED as KINDS
from kvasir_operator.kinds import PODS
from kvasir_operator.router_answers import SILENT_SECONDS, RouterAnswers
from kvasir_operator.settings import OperatorSettings


def router_pod(name: str, address: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}]
    metadata = {"name": name, "namespace": "r", "uid": name}
    metadata["labels"] = {labels.COMPONENT: labels.ROUTER}  # type: ignore[assignment]
    return {"metadata": metadata, "status": {"podIP": address, "conditions": conditions}}


class Fleet:
    """Routers on addresses of their own, one port; some answer, others hang."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pods: list[dict[str, Any]] = []
        self.hanging: set[str] = set()
        self.serving = {"uid/0"}
        self.more: dict[str, Any] = {}
        self.port = 0
        self.view = View()
        indexes: dict[str, Any] = {index_id(kind): {} for kind in KINDS}
        indexes[index_id(PODS)] = {ROUTERS: self.pods}
        self.view.bind(indexes)
        self.news = asyncio.Event()

    def answers(self) -> RouterAnswers:
        settings = OperatorSettings(router_namespace="r", router_admin_port=self.port)
        return RouterAnswers(self.view, settings, lambda: self.now)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if writer.get_extra_info("sockname")[0] in self.hanging:
                await asyncio.Event().wait()
            answer = {"serving": sorted(self.serving), **self.more}
            body = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the operator gave up, or the test is over
        finally:
            writer.close()


@asynccontextmanager
async def fleet(*addresses: str) -> AsyncIterator[Fleet]:
    made = Fleet()
    made.pods += [router_pod(f"router-{address}", address) for address in addresses]
    async with serving(made.serve, "0.0.0.0") as made.port:
        yield made


async def answered(it: Fleet) -> None:
    await asyncio.wait_for(it.news.wait(), 30)
    it.news.clear()


async def time_out(asked: RouterAnswers, router: str) -> None:
    """End the question to a router as a time-out does."""
    task = asked._routers[router].task
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_every_router_that_answers_has_to_serve_it() -> None:
    async with fleet("127.0.0.2", "127.0.0.3") as it:
        asked = it.answers()
        async with asked.client() as client:
            assert not asked.confirmed("uid/0")
            asked.ask(client, it.news.set)
            assert not asked.confirmed("uid/0")
            while not asked.confirmed("uid/0"):
                await answered(it)
            assert not asked.confirmed("uid/1")
            await asked.close()


async def test_a_silent_router_is_waited_for_a_while_and_then_not_until_it_answers() -> None:
    async with fleet("127.0.0.2", "127.0.0.3") as it:
        it.hanging = {"127.0.0.3"}
        asked = it.answers()
        async with asked.client() as client:
            asked.ask(client, it.news.set)
            await answered(it)
            assert not asked.confirmed("uid/0")
            assert asked.silent() == ()
            it.now += 4.0
            for _ in range(4):
                # As after each time-out: the one that hangs is asked anew
                await time_out(asked, "router-127.0.0.3")
                asked.ask(client, it.news.set)
                it.now += 4.0
            assert asked.silent() == ("router-127.0.0.3",)
            assert asked.confirmed("uid/0")
            # One that is not Ready any more is no silent one, though nobody has been asked since
            gone = it.pods.pop()
            assert asked.silent() == ()
            it.pods.append(gone)
            it.hanging = set()
            await time_out(asked, "router-127.0.0.3")
            it.now += 1.0
            asked.ask(client, it.news.set)
            while asked.silent():
                await answered(it)
            await asked.close()


async def test_nobody_silent_is_believed_and_a_pause_of_ours_is_no_silence_of_theirs() -> None:
    async with fleet("127.0.0.2") as it:
        it.hanging = {"127.0.0.2"}
        asked = it.answers()
        async with asked.client() as client:
            for _ in range(3):
                asked.ask(client, it.news.set)
                await time_out(asked, "router-127.0.0.2")
                it.now += SILENT_SECONDS
            assert asked.silent() == ()
            assert not asked.confirmed("uid/0")
            await asked.close()


async def test_a_router_that_is_gone_is_not_waited_for() -> None:
    async with fleet("127.0.0.2", "127.0.0.3") as it:
        it.hanging = {"127.0.0.3"}
        asked = it.answers()
        async with asked.client() as client:
            asked.ask(client, it.news.set)
            await answered(it)
            it.pods.pop()
            asked.ask(client, it.news.set)
            assert asked.confirmed("uid/0")
            await asked.close()


@given(st.binary(max_size=64) | st.sampled_from([b"[]", b'{"serving": 1}', b'{"serving": [{}]}']))
def test_nonsense_confirms_nothing(body: bytes) -> None:
    async def run() -> None:
        made = Fleet()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        async with serving(serve) as made.port:
            made.pods.append(router_pod("r", "127.0.0.1"))
            asked = made.answers()
            async with asked.client() as client:
                asked.ask(client, made.news.set)
                task = asked._routers["r"].task
                assert task is not None
                await task
                assert not asked.confirmed("uid/0")
                await asked.close()

    asyncio.run(run())


async def test_what_one_router_says_of_a_server_of_others_is_told() -> None:
    async with fleet("127.0.0.2", "127.0.0.3") as it:
        it.more = {"problems": {"uid/url-0": "no connection" + "x" * 1000}}
        asked = it.answers()
        async with asked.client() as client:
            asked.ask(client, it.news.set)
            while not asked.confirmed("uid/0"):
                await answered(it)
            assert asked.problem("uid/url-0").startswith("no connection")
            assert len(asked.problem("uid/url-0")) == 240
            assert asked.problem("uid/url-1") == ""
            await asked.close()
