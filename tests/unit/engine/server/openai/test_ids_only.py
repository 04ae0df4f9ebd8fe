"""A server without a tokenizer takes token ids and answers with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir_engine.server.large_bodies.shared_body import LARGE_BODY_BYTES
from kvasir_engine.text.no_tokenizer import NoTokenizer

COMPLETIONS = "/v1/completions"
IDS = {"prompt": [104, 105], "max_tokens": 5}


@pytest.fixture
async def ids_only(start_server: Any) -> Any:
    model = {"tokenizer": NoTokenizer(), "chat_template": None}
    return await start_server(model=model, skip_tokenizer_init=True)


async def test_ids_come_back_without_text(ids_only: Any) -> None:
    answer = await ids_only.post(COMPLETIONS, IDS)
    [choice] = answer.json()["choices"]
    expected = ids_only.core.tokens(0, 0)[:5]
    assert (choice["token_ids"], choice["text"]) == (expected, "")
    assert choice["prompt_token_ids"] == IDS["prompt"]
    large = json.dumps(IDS).encode().ljust(LARGE_BODY_BYTES + 1)
    by_worker = await ids_only.post(COMPLETIONS, content=large)
    assert by_worker.json()["choices"] == [choice]


async def test_ids_are_streamed(ids_only: Any) -> None:
    answer = await ids_only.post(COMPLETIONS, {**IDS, "stream": True})
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    streamed = [token for each in events for token in json.loads(each)["choices"][0]["token_ids"]]
    assert streamed == ids_only.core.tokens(0, 0)[:5]


async def test_logprobs_name_tokens_by_their_ids(ids_only: Any) -> None:
    body = {**IDS, "logprobs": 1, "return_tokens_as_token_ids": True}
    [choice] = (await ids_only.post(COMPLETIONS, body)).json()["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "hi"}, "prompt"),
        (COMPLETIONS, {**IDS, "stop": "x"}, "stop"),
        (COMPLETIONS, {**IDS, "bad_words": ["x"]}, "bad_words"),
        (COMPLETIONS, {**IDS, "echo": True}, "echo"),
        (COMPLETIONS, {**IDS, "logprobs": 1}, "logprobs"),
        (COMPLETIONS, {**IDS, "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/tokenize", {"prompt": "hi"}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/detokenize", {"tokens": [104]}, "tokens"),
    ],
)
async def test_what_needs_text_is_refused_with_the_remedy(
    ids_only: Any, path: str, body: Any, param: str
) -> None:
    answer = await ids_only.post(path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert "--skip-tokenizer-init; " in error["message"]
