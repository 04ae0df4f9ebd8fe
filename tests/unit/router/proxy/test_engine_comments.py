"""What an engine tells the router alone: it goes no further, and a client's word is not taken."""

import json
from typing import Any

import pytest
from support.broken_streams import BODY, PATH, engine, stream_of, text_of

from kvasir_router.proxy.event_stream import without_comments

pytestmark = pytest.mark.slow


def test_comments_are_cut_out_of_whole_events() -> None:
    events = stream_of(BODY)
    plain = [event.partition(b"\n")[2] for event in events]
    assert [without_comments(event) for event in events] == plain
    for first in range(len(events)):
        assert without_comments(b"".join(events[first:])) == b"".join(plain[first:])
    kept = b': waiting\n\ndata: {"a": ": kvasir {}"}\n\n'
    assert without_comments(kept) == kept
    assert without_comments(kept + events[0]) == kept + plain[0]
    assert without_comments(b": kvasir {}\n") == b""


async def test_no_client_sees_them_whoever_answers(routed, ask) -> None:
    router, _, b = await routed(engine(events=3), engine())
    answer = await ask(router)
    assert b.requests, "the stream has moved"
    assert "kvasir" not in answer
    assert text_of(answer) == text_of(await ask(router))


async def test_every_part_that_ends_an_answer_is_without_them(routed, ask) -> None:
    router, *_ = await routed(engine(), engine())
    answer = await ask(router, stream_options={"include_usage": True})
    assert "kvasir" not in answer
    assert answer.endswith("data: [DONE]\n\n")


async def test_a_part_of_nothing_but_a_comment_does_not_end_the_answer(routed, ask) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.start_events()
        for event in stream_of(json.loads(exchange.request.body)):
            await exchange.chunk(b": kvasir {}\n\n" if event is None else event)
            await exchange.chunk(b": kvasir {}\n")
            await exchange.chunk(b"\n")
        await exchange.end()

    router, *_ = await routed(answer, answer)
    assert "data: [DONE]" in await ask(router)


async def test_what_a_client_says_of_the_cache_is_not_counted(routed, client) -> None:
    router, *_ = await routed(engine(), engine())
    for resume, cached in ((None, 3), ({"output_token_ids": [], "cached_tokens": 3}, 3)):
        body = {**BODY, **({"resume": resume} if resume else {})}
        await client.post(router.url + PATH, json=body)
        assert await router.metric("tokens_total", kind="cached") == cached
