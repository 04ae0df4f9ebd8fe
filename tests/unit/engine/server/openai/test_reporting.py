from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir.text.chat_template import ChatTemplate
from kvasir.wire.messages_chat.messages_fields import chat_of_messages
from kvasir.wire.responses_chat.chat_fields import chat_of_response
from kvasir.wire.text_chain import chat_pieces
from kvasir_engine.server.openai.intake import render_chat
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.text.parsing.message_parser import Parsing

BODIES = {
    "/v1/completions": ({"prompt": ["first", "second"], "max_tokens": 1}, 2),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
        1,
    ),
    "/v1/messages": ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}, 1),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 1}, 1),
}


@pytest.fixture
async def queued(server: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The prompts that were given to the server's reporter."""
    reporter = server.app.state.server.make_reporter(await server.core.wait_ready())
    given: list[Any] = []
    monkeypatch.setattr(reporter, "put", given.append)
    return given


@pytest.mark.parametrize("path", BODIES)
async def test_prompts_are_reported_only_while_somebody_watches(
    server: Any, queued: list[Any], path: str
) -> None:
    body, number = BODIES[path]
    assert (await server.post(path, body)).status_code == 200
    assert queued == []
    with server.app.state.server.prompt_reporter.subscribe():
        assert (await server.post(path, body)).status_code == 200
    assert len(queued) == number
    request = server.core.requests[-1]
    assert queued[-1].token_ids == request.prompt_token_ids
    assert queued[-1].block_hashes == request.block_hashes
    assert server.core.tokenizer.encode(queued[-1].text) == list(request.prompt_token_ids)


async def test_a_chat_is_rendered_again_with_its_own_flags(server: Any, queued: list[Any]) -> None:
    body, _ = BODIES["/v1/chat/completions"]
    with server.app.state.server.prompt_reporter.subscribe():
        await server.post("/v1/chat/completions", {**body, "chat_template_kwargs": {"shout": 1}})
    [prompt] = queued
    assert prompt.render([{"role": "user", "content": "x"}]) == "<user>x!<assistant>"


async def test_a_prompt_of_ids_is_not_reported(server: Any, queued: list[Any]) -> None:
    with server.app.state.server.prompt_reporter.subscribe():
        await server.post("/v1/completions", {"prompt": [65, 66], "max_tokens": 1})
    assert queued == []


async def test_a_chat_with_tools_is_the_chain_that_a_router_makes_of_its_body(
    server: Any, queued: list[Any]
) -> None:
    state = server.app.state.server
    source = "{{ tools | tojson }}{{ reasoning_effort }}{{ messages[-1].content }}"
    state.model.chat_template = ChatTemplate(source)
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 99}}]
    body = {
        **BODIES["/v1/chat/completions"][0],
        "tools": tools,
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
    }
    with state.prompt_reporter.subscribe():
        assert (await server.post("/v1/chat/completions", body)).status_code == 200
    [prompt] = queued
    assert prompt.pieces == chat_pieces(body)
    assert prompt.render([{"role": "user", "content": "y"}]) == json.dumps(tools) + "lowy"


RESPONSE = {
    "instructions": "Be",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "tools": [{"type": "function", "name": "f", "strict": False}],
    "tool_choice": "none",
    "reasoning": {"effort": "none"},
    "cache_salt": "s",
    "max_output_tokens": 1,
}
HI = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}
TOOL = {"name": "f", "description": "D", "input_schema": {"type": "object"}, "cache_control": {}}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1, "a": [2.5]}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]}
CALLED = [
    HI,
    {"role": "assistant", "content": [THOUGHT, USE]},
    {"role": "user", "content": [RESULT]},
]
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [HI], "system": "Be"},
    {"messages": [HI], "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "it"}]},
    {"messages": [HI, {"role": "assistant", "content": "Well, "}]},
    {"messages": CALLED, "tools": [TOOL]},
    {"messages": CALLED, "tools": [TOOL], "tool_choice": {"type": "none"}},
    {"messages": [HI], "tools": [TOOL], "tool_choice": {"type": "auto"}, "cache_salt": "s"},
    {"messages": [HI], "thinking": {"type": "disabled"}},
    {"messages": [HI], "thinking": {"type": "adaptive"}, "stop_sequences": ["x"], "top_k": 3},
]
TEMPLATE = """{{ tools }}{{ enable_thinking }}{{ messages }}{{ add_generation_prompt }}\
{{ messages[-1].content }}"""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", RESPONSE),
        *(("/v1/messages", {**body, "max_tokens": 1}) for body in MESSAGES),
    ],
)
async def test_other_bodies_are_the_prompts_that_a_router_makes_of_them(
    server: Any, queued: list[Any], path: str, body: dict[str, Any]
) -> None:
    state = server.app.state.server
    template = state.model.chat_template = ChatTemplate(TEMPLATE)
    state.preparer._parsing = Parsing.choose(
        server.core.tokenizer, None, tools="hermes", reasoning="none"
    )
    with state.prompt_reporter.subscribe():
        assert (await server.post(path, body)).status_code == 200
    [prompt] = queued
    chat = (chat_of_messages if path == "/v1/messages" else chat_of_response)(body).fields
    assert prompt.pieces == chat_pieces(chat)
    text = render_chat(template, ChatBody(**chat), chat["messages"])
    request = server.core.requests[-1]
    assert list(request.prompt_token_ids) == server.core.tokenizer.encode(text)
    assert request.cache_salt == body.get("cache_salt", "")
