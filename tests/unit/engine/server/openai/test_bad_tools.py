"""Tools, schemas and results that are refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from support.answer_texts import TOOLS

from kvasir.text.chat_template import ChatTemplate

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


async def test_two_megabytes_of_results_are_too_long(start: Any) -> None:
    server = await start("ok", tools="hermes")
    messages = [{"role": "tool", "tool_call_id": "1", "content": "x" * 100_000}]
    error = (await server.post(PATH, {**CHAT, "messages": messages, "tools": TOOLS})).json()[
        "error"
    ]
    assert error["code"] == "context_length_exceeded"


CYCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/$defs/x"}}}
DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"properties": {"x": DEEP}}


def tool(name: Any = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "names 'g', which is not in tools",
        ),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice", 'must be "auto", "none"'),
        ({"tool_choice": "auto"}, "tool_choice", "needs tools"),
        ({"tools": "f"}, "tools", "must be"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name", "stands twice (tools[0]"),
        ({"tools": [tool(f"f{at}") for at in range(10_000)]}, "tools", "at most 1024 tools"),
        ({"tools": [7]}, "tools[0]", "must be"),
        ({"tools": [{"type": "mcp", "function": {"name": "f"}}]}, "tools[0]", "not supported"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "letters, digits"),
        ({"tools": [tool(None)]}, "tools[0].function.name", "not None"),
        ({"tools": [tool(description=1)]}, "tools[0].function.description", "a string"),
        (
            {"tools": [tool(strict=True, parameters={"properties": {"a": {"not": {}}}})]},
            "tools[0].function.parameters",
            "#/properties/a/not cannot be enforced",
        ),
        (
            {"tools": [tool()], "tool_choice": "required", "ignore_eos": True},
            "ignore_eos",
            "ignore_eos does not work together with tool_choice",
        ),
        (
            {"tools": [tool()], "structured_outputs": {"grammar": 'root ::= "a"'}},
            "structured_outputs",
            "does not work together with tools",
        ),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "a JSON schema"),
        ({"tools": [tool(parameters=CYCLE)]}, "tools[0].function.parameters", "back to itself"),
        ({"tools": [tool(parameters=DEEP)]}, "tools[0].function.parameters", "128 levels"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "none, minimal, low"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "must be"),
    ],
)
async def test_bad_tools_are_refused_in_a_sentence(
    start: Any, fields: dict[str, Any], param: str, words: str
) -> None:
    server = await start("ok", tools="hermes")
    answer = await server.post(PATH, {**CHAT, **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"]
    assert server.core.requests == []


@pytest.mark.parametrize("fields", [{}, {"parameters": TREE}, {"parameters": {}}])
async def test_schemas_that_name_themselves_in_their_parts_are_taken(
    start: Any, fields: dict[str, Any]
) -> None:
    server = await start("ok", tools="hermes")
    body = {**CHAT, "tools": [tool(**fields)], "tool_choice": "auto", "max_tokens": 5}
    assert (await server.post(PATH, body)).status_code == 200


async def test_a_model_without_a_known_format_calls_no_tools(start: Any) -> None:
    server = await start("ok")
    body = {**CHAT, "tools": [tool()], "max_tokens": 5}
    error = (await server.post(PATH, body)).json()["error"]
    assert error["param"] == "tools"
    assert "--tool-call-parser NAME" in error["message"]
    assert (await server.post(PATH, {**body, "tool_choice": "none"})).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool()]}, "tools"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0]",
        ),
    ],
)
async def test_a_template_that_knows_no_tools_is_named(
    start: Any, fields: dict[str, Any], param: str
) -> None:
    server = await start("ok", tools="hermes")
    server.app.state.server.model.chat_template = ChatTemplate("{{ messages[0].content }}")
    error = (await server.post(PATH, {**CHAT, **fields})).json()["error"]
    assert error["param"] == param
    assert "chat template" in error["message"]
    assert "--chat-template FILE" in error["message"]


@pytest.mark.parametrize("name", ["tools", "tool_choice", "reasoning_effort"])
async def test_a_completion_says_where_these_belong(start: Any, name: str) -> None:
    server = await start("ok")
    body = {"model": "tiny", "prompt": "x", name: "auto"}
    error = (await server.post("/v1/completions", body)).json()["error"]
    assert error["param"] == name
    assert "use /v1/chat/completions" in error["message"]
