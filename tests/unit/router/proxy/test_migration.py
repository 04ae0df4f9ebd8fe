"""Going on with broken streams: what is read of them, and when it is not possible."""

import json
from typing import Any

import pytest
from support.broken_streams import (
    BODY,
    PATH,
    USAGE,
    WORDS,
    chunk,
    code_of,
    engine,
    event,
    stream_of,
    text_of,
)

from kvasir_router.proxy.resuming.obstacle import ObstacleError
from kvasir_router.proxy.resuming.stream_progress import Progress, read_progress, resume_body

pytestmark = pytest.mark.slow


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

    def test_reasoning_arguments_and_calls_count_as_text(self) -> None:
        call = {"index": 0, "id": "c", "type": "function"}
        begun = {**call, "function": {"name": "get_weather", "arguments": '{"a'}}
        goes_on = {"index": 0, "function": {"arguments": '": 1}'}}
        deltas = [
            {"role": "assistant", "content": None},
            {"reasoning_content": "Hm.", "reasoning": "Hm."},
            {"content": "Hi", "tool_calls": [begun]},
            {"tool_calls": [goes_on]},
            {},
        ]
        comment = {"i": 0, "t": [1], "s": 8, "c": 0}
        events = b"".join(event(comment, chunk(delta=delta)) for delta in deltas)
        progress = read_progress(events)
        assert progress.sent_chars == len("Hm.") + len("Hi") + 1 + len('{"a": 1}')
        assert progress.opened

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
        monkeypatch.setattr("kvasir_router.proxy.failures.failure.MAX_HANDOVERS", most)
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
