from __future__ import annotations

import pytest


@pytest.fixture
async def client(server):
    return server.openai()


async def test_a_string_prompt(client):
    answer = await client.completions.create(model="tiny", prompt="abc", max_tokens=3)
    assert (answer.object, answer.id[:5]) == ("text_completion", "cmpl-")
    assert answer.choices[0].text == "The"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3)


async def test_sixteen_tokens_are_the_default(client):
    answer = await client.completions.create(model="tiny", prompt="abc")
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (["a", "bc"], ["a", "bc"]),
        ([64, 65], [[64, 65]]),
        ([[64, 65], [66]], [[64, 65], [66]]),
        (["a", [66, 67]], ["a", [66, 67]]),
    ],
)
async def test_prompts_in_every_form(server, prompt, expected):
    answer = await server.post(
        "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 2, "n": 2}
    )
    encode = server.core.tokenizer.encode
    ids = [encode(each) if isinstance(each, str) else each for each in expected]
    assert [list(request.prompt_token_ids) for request in server.core.requests] == ids
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(2 * len(expected)))
    assert [choice["text"] for choice in choices] == ["Th", "he"] * len(expected)
    assert answer.json()["usage"]["completion_tokens"] == 4 * len(expected)


async def test_several_prompts_stream_side_by_side(client):
    stream = await client.completions.create(
        model="tiny",
        prompt=["a", "b", "c"],
        n=2,
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts: dict[int, str] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: "The ", 1: "he q", 2: "The ", 3: "he q", 4: "The ", 5: "he q"}
    assert chunk.usage.total_tokens == 3 + 24


async def test_echo_puts_the_prompt_first(client):
    options = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "echo": True}
    unary = await client.completions.create(**options)
    assert unary.choices[0].text == "abcThe"
    chunks = [chunk async for chunk in await client.completions.create(**options, stream=True)]
    assert [chunk.choices[0].text for chunk in chunks] == ["abc", "T", "h", "e"]


async def test_echo_of_token_ids_is_their_text(client):
    answer = await client.completions.create(model="tiny", prompt=[64, 65], max_tokens=1, echo=True)
    assert answer.choices[0].text.endswith("T")
    assert len(answer.choices[0].text) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_echoed_logprobs_cover_prompt_and_output(client, stream):
    answer = await client.completions.create(
        model="tiny", prompt="abc", max_tokens=2, echo=True, logprobs=2, stream=stream
    )
    if stream:
        parts = [chunk.choices[0].logprobs async for chunk in answer]
        joined = {
            name: [value for part in parts for value in getattr(part, name)]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
    else:
        joined = answer.choices[0].logprobs.model_dump()
    assert joined["tokens"] == list("abcTh")
    assert joined["text_offset"] == [0, 1, 2, 3, 4]
    assert joined["token_logprobs"][0] is None
    assert all(value < 0 for value in joined["token_logprobs"][1:])
    assert joined["top_logprobs"][0] is None
    assert [len(top) for top in joined["top_logprobs"][1:]] == [2, 2, 2, 2]


async def test_the_sampled_token_is_always_among_the_top(client):
    answer = await client.completions.create(model="tiny", prompt="abc", max_tokens=1, logprobs=0)
    [top] = answer.choices[0].logprobs.top_logprobs
    assert list(top) == ["T"]


async def test_token_ids_and_prompt_logprobs_on_request(server, client):
    extra = {"return_token_ids": True, "prompt_logprobs": 0}
    answer = await client.completions.create(
        model="tiny", prompt="abc", max_tokens=2, extra_body=extra
    )
    [choice] = answer.choices
    assert choice.prompt_token_ids == server.core.tokenizer.encode("abc")
    assert server.core.tokenizer.decode(choice.token_ids) == "Th"
    assert [value is None for value in choice.prompt_logprobs] == [True, False, False]

    stream = await client.completions.create(
        model="tiny", prompt="abc", max_tokens=2, stream=True, extra_body={"return_token_ids": True}
    )
    chunks = [chunk.choices[0] async for chunk in stream]
    assert chunks[0].prompt_token_ids == choice.prompt_token_ids
    assert [token for chunk in chunks for token in chunk.token_ids] == choice.token_ids


async def test_special_tokens_can_be_shown(server):
    body = {"prompt": "a", "max_tokens": 200, "stop_token_ids": [257]}
    hidden = await server.post("/v1/completions", body)
    shown = await server.post(
        "/v1/completions",
        {**body, "skip_special_tokens": False, "include_stop_str_in_output": True},
    )
    assert hidden.json()["choices"][0]["text"] == server.core.text
    assert shown.json()["choices"][0]["text"] == server.core.text + "</s>"
    assert shown.json()["choices"][0]["stop_reason"] == 257


async def test_a_beam_search_is_one_request(server):
    body = {"prompt": "a", "max_tokens": 3, "n": 2, "use_beam_search": True, "temperature": 0}
    answer = await server.post("/v1/completions", {**body, "length_penalty": 0.5})
    assert len(answer.json()["choices"]) == 2
    params = server.core.requests[0].params
    assert (params.use_beam_search, params.length_penalty) == (True, 0.5)
