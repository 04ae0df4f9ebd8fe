"""Going on with broken streams: what is read of them, and when it is not possible."""

import asyncio
import json
from typing import Any

import pytest

from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health
from kvasir_router.options.router_settings import Failover, QueueLimits
from kvasir_router.proxy.migration import ObstacleError, Progress, read_progress, resume_body

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"


def event(comment: dict[str, Any], data: Any) -> bytes:
    text = data if data == "[DONE]" else json.dumps(data, separators=(",", ":"))
    line = json.dumps(comment, separators=(",", ":"))
    return f": kvasir {line}\ndata: {text}\n\n".encode()


def chunk(**choice: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "created": 17, "choices": [{"index": 0, **choice}]}


WORDS = ["über ", "den ", "Fluß ", "😀", " und", " weg"]
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": len(WORDS),
    "prompt_tokens_details": {"cached_tokens": 3},
}


def stream_of(body: dict[str, Any]) -> list[bytes]:
    """What a Kvasir engine answers to `body`: token n is word n."""
    resume = body.get("resume", {})
    done = len(resume.get("output_token_ids", []))
    head = {} if resume else {"c": 3}
    first = {"i": 0, "t": [], "s": 5, **head}
    events = []
    if not resume.get("opened"):
        events.append(event(first, chunk(delta={"role": "assistant", "content": ""})))
    for number in range(done, len(WORDS)):
        reason = "stop" if number == len(WORDS) - 1 else None
        comment = {"i": 0, "t": [number]}
        events.append(event(comment, chunk(delta={"content": WORDS[number]}, finish_reason=reason)))
    if done == len(WORDS) and not resume.get("finished"):
        events.append(event({"i": 0, "t": []}, chunk(delta={}, finish_reason="stop")))
    if body.get("stream_options"):
        events.append(event({}, {"id": "chatcmpl-1", "choices": [], "usage": USAGE}))
    return [*events, event({"u": USAGE}, "[DONE]")]


def engine(*, events: int | None = None, last: bytes = b"", after: Any = None) -> Any:
    """A script: the whole stream, or its first events, `last`, and `after` (default: death)."""

    async def answer(exchange: Any) -> None:
        made = stream_of(json.loads(exchange.request.body))
        await exchange.start_events()
        for each in made[:events]:
            await exchange.chunk(each)
        if last:
            await exchange.chunk(last)
        if events is None:
            await exchange.end()
        elif after is not None:
            await after(exchange)
        else:
            exchange.reset()

    return answer


def text_of(answer: str) -> str:
    """The words that an SSE client has."""
    datas = [
        line.removeprefix("data: ") for line in answer.split("\n") if line.startswith("data: ")
    ]
    chunks = [json.loads(data) for data in datas if data != "[DONE]"]
    assert [chunk for chunk in chunks if "error" in chunk] == []
    return "".join(
        choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]
    )


def code_of(answer: str) -> str:
    """Of the error that ends a stream."""
    last = answer.strip().split("\n\n")[-1]
    code: str = json.loads(last.removeprefix("data: "))["error"]["code"]
    return code


BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
def ask(client):
    async def post(router: Any, **fields: Any) -> str:
        response = await client.post(router.url + PATH, json={**BODY, **fields})
        assert response.status_code == 200
        text: str = response.text
        return text

    return post


@pytest.fixture
def routed(two):
    async def start(first: Any, second: Any, **options: Any) -> Any:
        options = {"policy": "round_robin", "fleet_secret": "s", **options}
        return await two(first, second, **options)

    return start


class TestProgress:
    def test_it_is_what_the_client_has(self) -> None:
        events = stream_of({"stream_options": {"include_usage": True}})
        assert read_progress(b"".join(events[:4])) == Progress(
            id="chatcmpl-1",
            created=17,
            seed=5,
            cached_tokens=3,
            token_ids=[0, 1, 2],
            sent_chars=len("über den Fluß "),
            opened=True,
        )
        assert not read_progress(b"".join(events[:-3])).finished
        assert read_progress(b"".join(events[:-2])).finished
        assert not read_progress(b"".join(events[:-2])).has_usage
        assert read_progress(b"".join(events[:-1])).has_usage

    def test_held_back_text_counts_as_tokens_only(self) -> None:
        held = event({"i": 0, "t": [1, 2], "s": 8, "c": 0}, chunk(delta={"content": ""}))
        assert read_progress(held).token_ids == [1, 2]
        assert read_progress(held).sent_chars == 0

    @pytest.mark.parametrize(
        "events",
        [
            b'data: {"choices": []}\n\n',
            b": kvasir {}\nevent: x\ndata: {}\n\n",
            b": kvasir {\ndata: {}\n\n",
            b": kvasir {}\ndata: nonsense\n\n",
            b': kvasir {"i":0,"t":["a"]}\ndata: {}\n\n',
        ],
    )
    def test_what_is_not_the_contract_is_refused(self, events: bytes) -> None:
        with pytest.raises(ObstacleError):
            read_progress(events)

    def test_the_original_body_stays_as_it_was(self) -> None:
        body = b' {"model" : "m", "x": 1.10, "y": "\\u00e9"}'
        made = resume_body(body, Progress(token_ids=[4], seed=2, sent_chars=3, opened=True))
        assert made.endswith(b'"model" : "m", "x": 1.10, "y": "\\u00e9"}')
        assert json.loads(made)["resume"]["output_token_ids"] == [4]


class TestMoved:
    @pytest.mark.parametrize("events", range(1, len(WORDS) + 3))
    async def test_after_any_event(self, routed, ask, events: int) -> None:
        router, _, b = await routed(engine(events=events, last=b"data: half an ev"), engine())
        answer = await ask(router)
        assert text_of(answer) == "".join(WORDS)
        assert "half an ev" not in answer
        assert answer.count("assistant") == answer.count("[DONE]") == 1
        if events <= len(WORDS):
            assert await router.metric("stream_migrations_total", outcome="moved") == 1
            resume = json.loads(b.requests[0].body)["resume"]
            assert resume["output_token_ids"] == list(range(events - 1))
            assert resume["sent_chars"] == len("".join(WORDS[: events - 1]))
        else:  # only [DONE] was missing, or not even that
            assert await router.metric("stream_migrations_total", outcome="completed") == 1
            assert not b.requests
        assert router.in_flight() == 0
        assert await router.metric("stream_transcript_bytes") == 0

    async def test_after_what_is_no_chunk(self, routed, ask) -> None:
        async def nonsense(exchange: Any) -> None:
            await exchange.write(b"zz\r\nno chunk\r\n")

        router, _, _ = await routed(engine(events=3, after=nonsense), engine())
        answer = await ask(router)
        assert text_of(answer) == "".join(WORDS)
        assert "no chunk" not in answer
        assert await router.metric("retries_total", reason="invalid_response") == 1

    async def test_usage_that_is_missing_is_asked_for(self, routed, ask) -> None:
        router, _, b = await routed(engine(events=len(WORDS) + 1), engine())
        answer = await ask(router, stream_options={"include_usage": True})
        assert text_of(answer) == "".join(WORDS)
        assert answer.count('"usage"') == 1
        assert answer.count('"stop"') == 1
        assert len(b.requests) == 1

    async def test_the_connection_serves_another_request(self, routed, post) -> None:
        router, _, _ = await routed(engine(events=3), engine())
        reader, writer = await router.connect()
        for _ in range(2):
            writer.write(post(json.dumps(BODY).encode(), target=PATH.encode()))
            answer = await reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"[DONE]" in answer
        writer.close()

    async def test_a_draining_engine_hands_over(self, routed, ask) -> None:
        state = {"choices": [{"i": 0, "t": [0, 1], "finish_reason": None}], "seed": 5, "usage": {}}
        comment = json.dumps({"u": USAGE}, separators=(",", ":"))
        handover = f": kvasir {comment}\nevent: handover\ndata: {json.dumps(state)}\n\n".encode()

        async def end(exchange: Any) -> None:
            await exchange.end()

        leaving = engine(events=3, last=handover, after=end)
        router, _, _ = await routed(leaving, engine())
        answer = await ask(router)
        assert text_of(answer) == "".join(WORDS)
        assert "handover" not in answer
        assert await router.metric("retries_total", reason="handover") == 1
        assert router.replica("m", "r0").failures == {}

    async def test_the_end_of_an_engines_core_is_not_the_clients(self, routed, ask) -> None:
        error = {"error": {"message": "The engine has ended.", "code": "engine_dead"}}
        router, _, _ = await routed(engine(events=3, last=event({"u": USAGE}, error)), engine())
        answer = await ask(router)
        assert text_of(answer) == "".join(WORDS)
        assert "engine_dead" not in answer

    async def test_an_answer_that_ends_early_is_broken(self, routed, ask) -> None:
        async def end(exchange: Any) -> None:
            await exchange.end()

        router, _, _ = await routed(engine(events=3, after=end), engine())
        assert text_of(await ask(router)) == "".join(WORDS)
        assert await router.metric("retries_total", reason="unfinished") == 1

    async def test_a_full_replica_is_passed_over(
        self, start_replica, start_router, model_entry, scripts, ask
    ) -> None:
        three = [engine(events=3), engine(), scripts.status(429)]
        replicas = [await start_replica(script=script) for script in three]
        router = await start_router(
            [model_entry("m", *replicas)], policy="round_robin", fleet_secret="s"
        )
        assert text_of(await ask(router)) == "".join(WORDS)
        assert [len(replica.requests) for replica in replicas] == [1, 1, 1]

    async def test_a_suspects_stream_moves(self, routed, ask, eventually) -> None:
        async def hang(exchange: Any) -> None:
            replica = router.replica("m", "r0")
            replica.observed(type(replica.health)("suspect"))
            replica.observed(type(replica.health)("suspect"))
            await exchange.client_left()

        router, _, _ = await routed(engine(events=3, after=hang), engine())
        assert text_of(await ask(router)) == "".join(WORDS)
        assert await router.metric("retries_total", reason="suspect") == 1

    @pytest.mark.parametrize("most", [2, 5])
    async def test_by_handovers_again_and_again_up_to_their_own_limit(
        self, start_replica, start_router, model_entry, ask, monkeypatch, most: int
    ) -> None:
        monkeypatch.setattr("kvasir_router.proxy.failure.MAX_HANDOVERS", most)
        state = b': kvasir {"u":{}}\nevent: handover\ndata: {}\n\n'

        async def one_more_event(exchange: Any) -> None:
            made = stream_of(json.loads(exchange.request.body))
            await exchange.start_events()
            await exchange.chunk(made[0] + state)
            await exchange.end()

        replicas = [await start_replica(script=one_more_event) for _ in range(2)]
        router = await start_router(
            [model_entry("m", *replicas)], policy="round_robin", fleet_secret="s"
        )
        answer = await ask(router)
        assert code_of(answer) == "replica_failed"
        assert sum(len(replica.requests) for replica in replicas) == most + 1
        assert await router.metric("stream_migrations_total", outcome="moves_spent") == 1
        assert await router.metric("stream_migrations_total", outcome="moved") == most


class TestNotMoved:
    """The stream ends with an error event, and the reason is counted."""

    @pytest.mark.parametrize(
        ("outcome", "fields"),
        [
            ("several_choices", {"n": 2}),
            ("several_choices", {"best_of": 2}),
            ("resumed_by_client", {"resume": {"output_token_ids": []}}),
        ],
    )
    async def test_by_request(self, routed, ask, outcome: str, fields: dict[str, Any]) -> None:
        router, _, b = await routed(engine(events=3), engine())
        assert code_of(await ask(router, **fields)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome=outcome) == 1
        assert await router.metric("broken_answers_total", model="m") == 1
        assert not b.requests

    @pytest.mark.parametrize(
        ("outcome", "options"),
        [
            ("off", {"failover": Failover(migration=False)}),
            ("too_large", {"failover": Failover(stream_bytes=100)}),
            ("too_large", {"failover": Failover(streams_bytes=100)}),
            ("no_contract", {"fleet_secret": None}),
        ],
    )
    async def test_by_setting(self, routed, ask, outcome: str, options: dict[str, Any]) -> None:
        router, _, b = await routed(engine(events=3), engine(), **options)
        assert code_of(await ask(router)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome=outcome) == 1
        assert not b.requests
        assert await router.metric("stream_transcript_bytes") == 0

    @pytest.mark.parametrize("field", ModelIdentity._fields)
    async def test_to_one_that_computes_otherwise(self, routed, ask, field: str) -> None:
        router, _, b = await routed(engine(events=3), engine())
        other = router.replica("m", "r1")
        other.serves = other.serves._replace(**{field: "another"})
        assert code_of(await ask(router)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome="no_replica") == 1
        assert not b.requests

    async def test_to_an_engine_that_refuses(self, routed, scripts, ask) -> None:
        router, _, b = await routed(engine(events=3), scripts.status(400))
        assert code_of(await ask(router)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome="refused") == 1
        assert len(b.requests) == 1
        assert router.in_flight() == 0

    async def test_after_two_deaths(self, routed, ask) -> None:
        router, _, _ = await routed(engine(events=3), engine(events=1))
        assert code_of(await ask(router)) == "poison_request"
        assert await router.metric("poison_requests_total", result="ended") == 1
        assert router.in_flight() == 0

    async def test_whose_client_leaves_while_it_moves(self, routed, post, eventually) -> None:
        left = []

        async def wait(exchange: Any) -> None:
            await exchange.client_left()
            left.append(exchange)

        router, _, b = await routed(engine(events=3), wait)
        reader, writer = await router.connect()
        writer.write(post(json.dumps(BODY).encode(), target=PATH.encode()))
        await reader.readuntil(b"den ")
        await eventually(lambda: len(b.requests) == 1)
        writer.close()
        await eventually(lambda: len(left) == 1)
        assert router.in_flight() == 0


class TestWaiting:
    """A broken stream whose like replicas are full or gone waits for one of them."""

    @pytest.fixture
    async def full(self, routed, client, eventually):
        """One stream breaks, at a replica that then drains, while the other one is full."""

        async def start(**waiting: Any) -> Any:
            leaves, breaks = asyncio.Event(), asyncio.Event()

            async def first(exchange: Any) -> None:
                await exchange.start_events()
                for each in stream_of(BODY)[:3]:
                    await exchange.chunk(each)
                await breaks.wait()
                exchange.reset()

            async def second(exchange: Any) -> None:
                if b"busy" in exchange.request.body:
                    await leaves.wait()
                    await exchange.json(200, {})
                else:
                    await engine()(exchange)

            line = QueueLimits(**{"requests": 9, "heartbeat": 0.02, **waiting})
            router, a, b = await routed(first, second, max_in_flight=1, waiting=line)
            stream = asyncio.create_task(client.post(router.url + PATH, json=BODY))
            await eventually(lambda: len(a.requests) == 1)
            busy = {"model": "m", "messages": [{"role": "user", "content": "busy"}]}
            other = asyncio.create_task(client.post(router.url + PATH, json=busy))
            await eventually(lambda: len(b.requests) == 1)
            a.ready = 503
            await eventually(lambda: router.replica("m", "r0").health is Health.NOT_READY)
            breaks.set()
            return router, stream, other, leaves

        return start

    async def waits(self, router: Any, eventually: Any) -> None:
        model = router.server.fleet.models["m"]
        await eventually(lambda: router.server.gateway.line.waiting(model) == 1)

    async def test_until_there_is_room(self, full, eventually) -> None:
        router, stream, other, leaves = await full()
        await self.waits(router, eventually)
        await asyncio.sleep(0.2)
        leaves.set()
        answer = (await stream).text
        assert ": waiting" in answer
        assert text_of(answer) == "".join(WORDS)
        assert (await other).status_code == 200
        assert await router.metric("stream_migrations_total", outcome="waited") == 1
        assert await router.metric("stream_migrations_total", outcome="moved") == 1
        assert await router.metric("broken_answers_total", model="m") == 0
        assert router.in_flight() == 0

    async def test_no_longer_than_the_line_lets(self, full, eventually) -> None:
        router, stream, other, leaves = await full(timeout=0.3)
        assert code_of((await stream).text) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome="no_replica") == 1
        assert await router.metric("broken_answers_total", model="m") == 1
        leaves.set()
        await other
        assert router.in_flight() == 0

    async def test_until_its_client_leaves(self, full, eventually) -> None:
        router, stream, other, leaves = await full()
        await self.waits(router, eventually)
        stream.cancel()
        model = router.server.fleet.models["m"]
        await eventually(lambda: router.server.gateway.line.waiting(model) == 0)
        leaves.set()
        await other
        assert router.in_flight() == 0
        assert await router.metric("stream_transcript_bytes") == 0

    async def test_until_its_own_replica_is_back(
        self, start_replica, start_router, model_entry, client
    ) -> None:
        breaks = [engine(events=3)]

        async def once(exchange: Any) -> None:
            await (breaks.pop() if breaks else engine())(exchange)

        replica = await start_replica(script=once)
        router = await start_router(
            [model_entry("m", replica)], fleet_secret="s", waiting=QueueLimits(requests=9)
        )
        answer = await client.post(router.url + PATH, json=BODY)
        assert text_of(answer.text) == "".join(WORDS)
        assert len(replica.requests) == 2
        assert await router.metric("stream_migrations_total", outcome="waited") == 1

    async def test_until_its_only_replica_has_a_successor(
        self, start_replica, start_router, model_entry, write_config, client, eventually
    ) -> None:
        """A node is drained: the one replica ends before the next one is even known."""
        breaks = asyncio.Event()

        async def leaves(exchange: Any) -> None:
            await breaks.wait()
            exchange.reset()

        replica = await start_replica(script=engine(events=3, after=leaves))
        entry = model_entry("m", replica)
        router = await start_router([entry], fleet_secret="s", waiting=QueueLimits(requests=9))
        stream = asyncio.create_task(client.post(router.url + PATH, json=BODY))
        await eventually(lambda: len(replica.requests) == 1)
        entry["replicas"][0]["draining"] = True
        write_config(router.config, [entry])
        await eventually(lambda: router.replica("m", "r0").draining)
        breaks.set()
        await self.waits(router, eventually)
        successor = model_entry("m", await start_replica(script=engine()))
        successor["replicas"][0]["id"] = "r1"
        write_config(router.config, [successor])
        assert text_of((await stream).text) == "".join(WORDS)
        assert await router.metric("stream_migrations_total", outcome="waited") == 1
