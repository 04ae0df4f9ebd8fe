"""What a response repeats of its request."""

from __future__ import annotations

import pytest
from openai.types.responses import Response

from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai_responses.repeated_fields import (
    INCLUDABLE,
    check_repeated,
    repeated_fields,
)
from kvasir_engine.server.openai_responses.responses_body import ResponsesBody


def test_defaults_are_openais() -> None:
    made = repeated_fields(ResponsesBody())
    assert (made["tool_choice"], made["tools"], made["truncation"]) == ("auto", [], "disabled")
    assert made["text"]["format"] == {"type": "text"}
    assert made["parallel_tool_calls"] is True
    unknown = made.keys() - Response.model_fields.keys()
    assert unknown == {"store"}


def test_tools_are_complete() -> None:
    tool = {"type": "function", "name": "f"}
    [made] = repeated_fields(ResponsesBody(tools=[tool]))["tools"]
    assert made == {**tool, "parameters": None, "strict": False}


@pytest.mark.parametrize(
    ("kept", "store", "told"),
    [(None, None, False), (True, None, True), (True, True, True), (True, False, False)],
)
def test_only_a_router_keeps_responses(kept: bool | None, store: bool | None, told: bool) -> None:
    body = ResponsesBody(kept_by_router=kept, store=store)
    check_repeated(body)
    assert repeated_fields(body)["store"] is told


def test_all_of_openais_inclusions_are_taken() -> None:
    check_repeated(ResponsesBody(include=list(INCLUDABLE)))
    with pytest.raises(ApiError, match="include has 'other'"):
        check_repeated(ResponsesBody(include=["other"]))
