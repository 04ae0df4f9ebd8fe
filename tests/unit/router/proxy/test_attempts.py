"""Which failures are followed by another attempt, where, and how often."""

import asyncio
import json
from typing import Any

import pytest

from kvasir_router.fleet.circuit_breaker import BreakerState
from kvasir_router.fleet.replica import Health
from kvasir_router.options.router_settings import Probing, Timeouts
from kvasir_router.process.client_port import turn_away

pytestmark = pytest.mark.slow

BODY = b'{"model": "m", "prompt": "a"}'


class TestBeforeTheFirstByte:
    async def test_refused_connections(self, two, scripts, client) -> None:
        # No probe tells the router: only the requests find out.
        router, a, _ = await two(scripts.ok, scripts.ok, probing=Probing(600, 0.02, 0.5))
        await a.stop()
        for _ in range(10):
            assert (await client.post(f"{router.url}/score", content=BODY)).status_code == 200
        assert router.replica("m", "r0").health is Health.DOWN
        assert router.replica("m", "r1").served == 10
        assert router.in_flight() == 0

    async def test_killed_before_the_first_byte(self, two, scripts, client) -> None:
        router, a, b = await two(scripts.reset, scripts.ok, policy="round_robin")
        for _ in range(4):
            assert (await client.post(f"{router.url}/score", content=BODY)).status_code == 200
        assert a.requests
        assert len(b.requests) == 4
        assert await router.metric("retries_total", model="m", reason="reset") == len(a.requests)
        assert router.in_flight() == 0

    async def test_half_a_header_is_before_the_first_byte(self, two, scripts, client) -> None:
        async def half(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 200 OK\r\nContent-")
            exchange.reset()

        router, _, b = await two(half, scripts.ok, policy="round_robin")
        for _ in range(2):
            assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(b.requests) == 2

    async def test_what_is_no_http_is_tried_elsewhere(self, two, scripts, client) -> None:
        async def nonsense(exchange: Any) -> None:
            await exchange.write(b"SSH-2.0-OpenSSH_9.6\r\n")

        router, _, b = await two(nonsense, scripts.ok, policy="round_robin")
        for _ in range(2):
            assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(b.requests) == 2

    @pytest.mark.parametrize("status", [429, 503])
    async def test_full_or_draining_goes_elsewhere_once(
        self, two, scripts, client, status: int
    ) -> None:
        router, a, b = await two(scripts.status(status), scripts.ok, policy="round_robin")
        for _ in range(4):
            assert (await client.post(f"{router.url}/score", content=BODY)).status_code == 200
        assert a.requests
        assert len(b.requests) == 4
        assert router.in_flight() == 0

    @pytest.mark.parametrize("status", [429, 503])
    async def test_it_is_passed_on_when_all_say_so(self, two, scripts, client, status: int) -> None:
        router, a, b = await two(scripts.status(status), scripts.status(status))
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.status_code == status
        assert response.headers["retry-after"] == "7"
        assert response.json() == {"from": status}
        assert len(a.requests) == len(b.requests) == 1

    async def test_a_kept_connection_that_was_closed_is_no_fault(self, one, client) -> None:
        async def answer_and_close(exchange: Any) -> None:
            if closing.is_set() and exchange.request.header("x-request-id") not in seen:
                seen.add(exchange.request.header("x-request-id"))
                exchange.writer.transport.abort()
                return
            await exchange.json(200, {"ok": True})

        closing, seen = asyncio.Event(), set()
        router, replica = await one(answer_and_close)
        await client.post(f"{router.url}/score", content=BODY)
        closing.set()
        assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(replica.requests) == 3
        assert not router.replica("m", "r0").failures

    async def test_half_an_answer_is_replaced_by_a_whole_one(self, two, scripts, client) -> None:
        async def half(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            await asyncio.sleep(0.02)
            exchange.reset()

        router, a, b = await two(half, scripts.ok, policy="round_robin")
        assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(a.requests) == len(b.requests) == 1
        assert await router.metric("broken_answers_total", model="m") == 0

    async def test_an_answer_in_parts_is_held_and_passed_whole(self, one, client) -> None:
        body = bytes(range(256)) * 64

        async def parts(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 4096):
                await exchange.write(body[at : at + 4096])
                await asyncio.sleep(0.001)

        router, _ = await one(parts)
        assert (await client.post(f"{router.url}/score", content=BODY)).content == body

    async def test_a_stream_without_an_event_begins_anew(self, two, scripts, client) -> None:
        async def only_a_head(exchange: Any) -> None:
            await exchange.start_events()
            await asyncio.sleep(0.02)
            exchange.reset()

        async def whole(exchange: Any) -> None:
            await exchange.start_events()
            await exchange.chunk(b"data: 1\n\n")
            await exchange.end()

        router, a, _ = await two(only_a_head, whole, policy="round_robin")
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.text == "data: 1\n\n"
        assert len(a.requests) == 1

    @pytest.mark.parametrize("status", [500, 502, 504])
    async def test_a_fault_is_tried_elsewhere_and_opens_the_breaker(
        self, two, scripts, client, status: int
    ) -> None:
        router, a, b = await two(scripts.status(status), scripts.ok, policy="round_robin")
        for _ in range(20):
            assert (await client.post(f"{router.url}/score", content=BODY)).status_code == 200
        assert len(a.requests) == 5
        assert len(b.requests) == 20
        assert router.replica("m", "r0").breaker.state is BreakerState.OPEN

    async def test_refusals_are_no_attempts(
        self, start_replica, start_router, model_entry, scripts, client
    ) -> None:
        replicas = [await start_replica(script=scripts.ok) for _ in range(6)]
        entry = model_entry("m", *replicas)
        router = await start_router([entry], policy="round_robin", probing=Probing(600, 0.02, 0.5))
        for replica in replicas[:-1]:
            await replica.stop()
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.json() == {"ok": True}
        assert await router.metric("retries_total", reason="refused") == 5


class TestBudget:
    async def test_faults_are_retried_for_a_fifth_of_the_requests(
        self, two, scripts, client
    ) -> None:
        router, a, b = await two(scripts.status(500), scripts.status(500))
        for _ in range(30):
            response = await client.post(f"{router.url}/score", content=BODY)
            assert response.status_code == 500
            assert response.json() == {"from": 500}
        assert len(a.requests) + len(b.requests) == 30 + 10
        assert await router.metric("retries_total", reason="500") == 10
        assert await router.metric("retry_budget_refusals_total", model="m") >= 1

    async def test_deaths_are_not_charged(
        self, start_replica, start_router, model_entry, scripts, client
    ) -> None:
        """Twice as many as the budget would have."""
        dying = await start_replica(script=scripts.reset)
        other = await start_replica(script=scripts.ok)
        router = await start_router([model_entry("m", dying, other)], policy="round_robin")
        model = router.server.fleet.models["m"]
        while model.budget.spend(asyncio.get_running_loop().time()):
            pass
        replica = router.replica("m", "r0")
        for _ in range(20):
            replica.observed(Health.READY)
            replica.breaker.succeeded()
            assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(dying.requests) >= 10


class TestPoison:
    async def test_two_deaths_end_it_and_its_like_is_refused(
        self, start_replica, start_router, model_entry, scripts, client
    ) -> None:
        async def dies_of_it(exchange: Any) -> None:
            script = scripts.reset if b"bad" in exchange.request.body else scripts.ok
            await script(exchange)

        replicas = [await start_replica(script=dies_of_it) for _ in range(4)]
        router = await start_router([model_entry("m", *replicas)])
        bad = b'{"model": "m", "prompt": "bad"}'
        for _ in range(3):
            response = await client.post(f"{router.url}/score", content=bad)
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "poison_request"
            assert response.headers["x-should-retry"] == "false"
        assert sum(len(replica.requests) for replica in replicas) == 2
        assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert await router.metric("poison_requests_total", result="ended") == 1
        assert await router.metric("poison_requests_total", result="refused") == 2
        assert router.in_flight() == 0

    async def test_where_one_ended_others_may_too(
        self, start_replica, start_router, model_entry, scripts, client
    ) -> None:
        """A node that is lost ends all its engines: only another node's can tell."""
        replicas = [await start_replica(script=scripts.reset) for _ in range(6)]
        replicas.append(await start_replica(script=scripts.ok))
        entry = model_entry("m", *replicas)
        for number, replica in enumerate(entry["replicas"]):
            replica["node"] = "n1" if number < 6 else "n2"
        router = await start_router([entry], policy="round_robin")
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.json() == {"ok": True}
        assert sum(len(replica.requests) for replica in replicas) == 2

    async def test_an_engine_whose_core_died_counts_too(
        self, start_replica, start_router, model_entry, scripts, client
    ) -> None:
        dead = scripts.status(503, code="engine_dead", message="The engine has ended.")
        replicas = [await start_replica(script=dead) for _ in range(3)]
        router = await start_router([model_entry("m", *replicas)], fleet_secret="s")
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.json()["error"]["code"] == "poison_request"
        assert sum(len(replica.requests) for replica in replicas) == 2

    async def test_engines_that_were_gone_before_are_no_deaths_of_it(
        self, two, scripts, client
    ) -> None:
        """Their kept connections may not tell of it in time."""

        async def answer(exchange: Any) -> None:
            await (scripts.reset if gone.is_set() else scripts.ok)(exchange)

        gone = asyncio.Event()
        router, a, b = await two(answer, answer, policy="round_robin")
        for _ in range(2):
            await client.post(f"{router.url}/score", content=BODY)
        gone.set()
        for replica in (a, b):
            replica._server.close()
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_not_ready"
        assert await router.metric("poison_requests_total", model="m") == 0


class TestConnecting:
    async def test_an_engine_that_does_not_take_a_connection_costs_nothing(
        self, two, scripts, client
    ) -> None:
        """Nothing was sent: another one may have the request, however many went there before."""
        router, a, b = await two(
            scripts.ok, scripts.ok, policy="round_robin", timeouts=Timeouts(connect=0.2)
        )
        turn_away(a._server.sockets[0])
        model = router.server.fleet.models["m"]
        while model.budget.spend(asyncio.get_running_loop().time()):
            pass
        for _ in range(2):
            assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(b.requests) == 2
        assert await router.metric("retries_total", reason="connect_timeout") >= 1


class TestLeaving:
    @pytest.mark.parametrize("code", ["draining", "handover", "engine_dead"])
    async def test_an_ending_engine_loses_nothing_and_costs_nothing(
        self, two, scripts, client, code: str
    ) -> None:
        ending = scripts.status(503, code=code, message="The server is shutting down.")
        router, a, b = await two(ending, scripts.ok, policy="round_robin", fleet_secret="s")
        model = router.server.fleet.models["m"]
        while model.budget.spend(asyncio.get_running_loop().time()):
            pass
        for _ in range(4):
            assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert a.requests
        assert len(b.requests) == 4
        assert await router.metric("retries_total", reason=code) == len(a.requests)

    async def test_a_handed_over_request_takes_its_tokens_along(self, two, scripts, client) -> None:
        state = {"choices": [{"i": 0, "t": [5, 6], "finish_reason": None}], "seed": 9, "usage": {}}
        ending = scripts.status(503, code="handover", message="It ends.", handover=state)
        router, a, b = await two(ending, scripts.ok, policy="round_robin", fleet_secret="s")
        await client.post(f"{router.url}/v1/completions", content=BODY)
        assert [len(a.requests), len(b.requests)] == [1, 1]
        resume = json.loads(b.requests[0].body)["resume"]
        assert resume["output_token_ids"] == [5, 6]
        assert resume["seed"] == 9
        assert resume["sent_chars"] == 0

    async def test_it_begins_anew_when_its_answer_tells_of_each_token(
        self, two, scripts, client
    ) -> None:
        state = {"choices": [{"i": 0, "t": [5, 6], "finish_reason": None}], "seed": 9, "usage": {}}
        ending = scripts.status(503, code="handover", message="It ends.", handover=state)
        router, _, b = await two(ending, scripts.ok, policy="round_robin", fleet_secret="s")
        body = b'{"model": "m", "prompt": "a", "logprobs": 1}'
        await client.post(f"{router.url}/v1/completions", content=body)
        assert [request.body for request in b.requests] == [body]

    async def test_a_suspect_loses_its_waiting_requests(
        self, two, scripts, client, eventually
    ) -> None:
        router, a, _ = await two(scripts.silent, scripts.ok, policy="round_robin")
        asked = [
            asyncio.create_task(client.post(f"{router.url}/score", content=BODY)) for _ in range(8)
        ]
        await eventually(lambda: len(a.requests) == 4)
        replica = router.replica("m", "r0")
        replica.observed(Health.SUSPECT)
        replica.observed(Health.SUSPECT)
        assert [response.json() for response in await asyncio.gather(*asked)] == [{"ok": True}] * 8
        assert await router.metric("retries_total", reason="suspect") == 4
        assert router.in_flight() == 0

    async def test_a_suspect_keeps_them_when_it_is_the_only_one(
        self, one, scripts, client, eventually
    ) -> None:
        router, replica = await one(scripts.after(0.3, scripts.ok))
        asked = asyncio.create_task(client.post(f"{router.url}/score", content=BODY))
        await eventually(lambda: len(replica.requests) == 1)
        for _ in range(3):
            router.replica("m", "r0").observed(Health.SUSPECT)
        assert (await asked).json() == {"ok": True}
