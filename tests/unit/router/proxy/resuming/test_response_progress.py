"""What the client of a broken stream of a response has, and what keeps one from going on."""

from typing import Any

import pytest
from support.broken_responses import BODY, PATH, WORDS, response_engine, response_stream
from support.named_streams import data_of

from kvasir_router.proxy.resuming.obstacle import Obstacle, ObstacleError
from kvasir_router.proxy.resuming.response_progress import read_response_progress

EVENTS = response_stream(BODY)
BEFORE = 4
"""Events before the first word."""


@pytest.fixture
def post_response(client):
    async def post(router: Any, **fields: Any) -> str:
        answer = await client.post(router.url + PATH, json={**BODY, **fields})
        assert answer.status_code == 200
        text: str = answer.text
        return text

    return post


def test_it_is_what_the_client_has() -> None:
    progress = read_response_progress(b"".join(EVENTS[: BEFORE + 2]))
    assert progress.token_ids == [0, 1]
    assert (progress.sent_events, progress.sent_steps) == (BEFORE + 2, BEFORE)
    assert progress.sent_chars == len(WORDS[0] + WORDS[1])
    assert (progress.id, progress.created, progress.seed) == ("resp_1", 17, 5)
    assert progress.cached_tokens == 3
    assert not progress.done
    assert read_response_progress(b"".join(EVENTS)).done


@pytest.mark.parametrize(
    "events",
    [
        b'event: response.created\ndata: {"type":"response.created"}\n\n',
        b": kvasir {\n\n",
        b': kvasir {"i":0,"t":[],"s":1}\ndata: nonsense\n\n',
        b': kvasir {"i":0,"t":[],"s":1}\ndata: {}\n\n',
    ],
)
def test_what_is_not_the_contract_is_refused(events: bytes) -> None:
    with pytest.raises(ObstacleError) as refused:
        read_response_progress(events)
    assert refused.value.obstacle is Obstacle.CONTRACT


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}]
)
async def test_with_log_probabilities_it_ends_with_an_error(
    routed, post_response, fields: dict[str, Any]
) -> None:
    router, _, b = await routed(response_engine(events=6), response_engine())
    answer = await post_response(router, **fields)
    last = data_of(answer)[-1]
    assert answer.rstrip().split("\n\n")[-1].startswith("event: error\n")
    assert (last["type"], last["sequence_number"]) == ("error", 6)
    assert last["message"] == last["error"]["message"]
    assert await router.metric("stream_migrations_total", outcome="logprobs") == 1
    assert not b.requests
