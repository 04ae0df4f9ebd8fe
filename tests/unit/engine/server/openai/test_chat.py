from __future__ import annotations

import asyncio
from collections import Counter

import openai
import pytest
from support.engine_server import EOS
from support.loop_clock import LoopClock

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.server.generation import delta_portions
from kvasir_engine.text.parsing.message_parser import MessageParser, Parsing

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def client(server):
    return server.openai()


async def test_a_unary_answer(server, client):
    answer = await client.chat.completions.create(**CHAT, max_tokens=9)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "The quick"
    assert choice.finish_reason == "length"
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.usage.completion_tokens == 9
    assert answer.usage.prompt_tokens == len("<user>hi<assistant>")
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    [request] = server.core.requests
    assert server.core.tokenizer.decode(request.prompt_token_ids) == "<user>hi<assistant>"


@pytest.mark.parametrize("tokens_a_batch", [1, 7])
async def test_a_stream_is_the_unary_answer_in_parts(server, client, tokens_a_batch):
    options = {**CHAT, "max_tokens": 200, "seed": 0}
    unary = await client.chat.completions.create(**options)
    server.core.tokens_a_batch = tokens_a_batch
    stream = await client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == unary.choices[0].message.content == server.core.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == unary.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1
    tokens = len(server.core.text.encode()) + 1
    assert len(chunks) == -(-tokens // tokens_a_batch) + 2


async def test_the_synchronous_client_streams(server):
    def stream() -> str:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="x") as client:
            chunks = client.chat.completions.create(**CHAT, max_tokens=9, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert await asyncio.to_thread(stream) == "The quick"


async def test_choices_of_one_stream_stay_apart(client):
    stream = await client.chat.completions.create(**CHAT, max_tokens=5, n=3, stream=True)
    texts, roles = {}, []
    async for chunk in stream:
        [choice] = chunk.choices
        roles += [choice.index] if choice.delta.role else []
        texts[choice.index] = texts.get(choice.index, "") + choice.delta.content
    assert texts == {0: "The q", 1: "he qu", 2: "e qui"}
    assert sorted(roles) == [0, 1, 2]


async def test_stop_strings_cut_text_logprobs_and_usage(server, client):
    options = {**CHAT, "max_tokens": 200, "stop": ["fox", "zzz"], "logprobs": True}
    unary = await client.chat.completions.create(**options, extra_body={"return_token_ids": True})
    [choice] = unary.choices
    assert choice.message.content == "The quick brown "
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "fox")
    assert len(choice.logprobs.content) == unary.usage.completion_tokens
    assert server.core.tokenizer.decode(choice.token_ids) == "The quick brown fox"

    stream = await client.chat.completions.create(**options, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content for c in chunks) == "The quick brown "
    assert chunks[-1].choices[0].stop_reason == "fox"
    assert sum(len(c.choices[0].logprobs.content) for c in chunks[1:]) == len("The quick brown fox")


async def test_the_core_is_told_of_a_stop_string(server, client):
    await client.chat.completions.create(**CHAT, max_tokens=200, stop="fox", n=2)
    [(_, still_ran)] = server.core.closed
    assert not still_ran


async def test_logprobs_show_bytes_and_alternatives(client):
    answer = await client.chat.completions.create(
        **CHAT, max_tokens=2, logprobs=True, top_logprobs=2
    )
    first, second = answer.choices[0].logprobs.content
    assert (first.token, first.bytes) == ("T", [ord("T")])
    assert second.logprob < 0
    assert [top.token for top in first.top_logprobs] == ["T", "U"]


async def test_token_ids_on_request(server, client):
    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    stream = await client.chat.completions.create(
        **CHAT, max_tokens=3, logprobs=True, stream=True, extra_body=extra
    )
    chunks = [chunk async for chunk in stream]
    assert server.core.tokenizer.decode(chunks[0].prompt_token_ids) == "<user>hi<assistant>"
    assert "prompt_token_ids" not in chunks[1].model_extra
    ids = [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids]
    assert server.core.tokenizer.decode(ids) == "The"
    assert chunks[1].choices[0].logprobs.content[0].token == f"token_id:{ids[0]}"


async def test_prompt_logprobs_of_a_chat(client):
    answer = await client.chat.completions.create(
        **CHAT, max_tokens=1, extra_body={"prompt_logprobs": 1}
    )
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    assert answer.prompt_logprobs[0] is None
    [value] = answer.prompt_logprobs[1].values()
    assert (value["rank"], value["decoded_token"]) == (1, "u")


async def test_usage_in_every_chunk(client):
    stream = await client.chat.completions.create(
        **CHAT,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [chunk.usage.completion_tokens async for chunk in stream]
    assert counts == [1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, "<user>a\nb<assistant>"),
        ({"add_generation_prompt": False}, "<user>a\nb"),
        ({"chat_template_kwargs": {"shout": True}}, "<user>a\nb!<assistant>"),
    ],
)
async def test_the_template_gets_parts_and_options(server, client, extra, expected):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await client.chat.completions.create(
        model="alias",
        messages=[{"role": "user", "content": parts}],
        max_tokens=1,
        extra_body=extra,
    )
    assert server.core.tokenizer.decode(server.core.requests[0].prompt_token_ids) == expected


async def test_a_final_message_is_continued(server, client):
    await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "Sure, "}],
        max_tokens=1,
        extra_body={"continue_final_message": True},
    )
    ids = server.core.requests[0].prompt_token_ids
    assert server.core.tokenizer.decode(ids) == "<user>a<assistant>Sure, "


async def test_parameters_reach_the_core(server, client):
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "min_tokens": 2,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "bad_words": ["no"],
        "allowed_token_ids": [1, 2],
        "priority": -3,
        "cache_salt": "tenant",
    }
    await client.chat.completions.create(
        **CHAT,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=-0.1,
        seed=11,
        logit_bias={"65": -2},
        max_completion_tokens=7,
        extra_body=extra,
    )
    [request] = server.core.requests
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 5, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.1, -0.1)
    assert (params.repetition_penalty, params.min_tokens, params.max_tokens) == (1.2, 2, 7)
    assert (params.seed, params.stop_token_ids, params.ignore_eos) == (11, [7], True)
    assert (params.logit_bias, params.allowed_token_ids) == ({65: -2.0}, [1, 2])
    assert server.core.tokenizer.encode("no") in params.bad_words_token_ids
    assert (request.priority, request.cache_salt) == (-3, "tenant")
    assert len(request.block_hashes) == request.num_prompt_tokens // 16 * 16


async def test_max_tokens_is_what_the_context_leaves(server, client):
    await client.chat.completions.create(**CHAT)
    [request] = server.core.requests
    assert request.params.max_tokens == 512 - request.num_prompt_tokens


async def test_defaults_of_the_model_are_for_what_is_left_out(start_server):
    server = await start_server(
        model={"defaults": {"temperature": 0.3, "top_k": 9, "max_tokens": 10_000}}
    )
    await server.post("/v1/chat/completions", {**CHAT, "top_k": 2})
    [request] = server.core.requests
    assert (request.params.temperature, request.params.top_k) == (0.3, 2)
    assert request.params.max_tokens == 512 - request.num_prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("resumed", [0, 200])
async def test_a_long_answer_is_parsed_in_turns(
    start_server, byte_tokenizer, monkeypatch, stream, resumed
):
    parsing = Parsing.choose(byte_tokenizer, None, tools="hermes", reasoning="none")
    template = ChatTemplate("{{ tools | tojson if tools }}{{ messages[0].content }}")
    server = await start_server(model={"parsing": parsing, "chat_template": template})
    numbers = ", ".join(map(str, range(60)))
    text = '<tool_call>{"name": "f", "arguments": {"x": [' + numbers + "]}}</tool_call>"
    encoded = byte_tokenizer.encode(text)
    server.core.tokens = lambda seed, sample: [*encoded, EOS]
    server.core.tokens_a_batch = 8
    monkeypatch.setattr(server.app.state.server.turns, "_seconds", 0.0)
    monkeypatch.setattr(delta_portions, "PORTION_CHARS", 16)
    clock, parsed, push = LoopClock(), Counter(), MessageParser.push

    def noted(self, text, *, last):
        parsed[clock.turn] += len(text)
        return push(self, text, last=last)

    monkeypatch.setattr(MessageParser, "push", noted)
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {**CHAT, "max_tokens": 400, "tools": tools, "stream": stream}
    if resumed:
        body["resume"] = {"output_token_ids": encoded[:resumed], "seed": 0, "id": "x"}
    answer = (await server.post("/v1/chat/completions", body)).text
    assert '"tool_calls":[' in answer
    assert sum(parsed.values()) == len(text)
    assert max(parsed.values()) <= 32
