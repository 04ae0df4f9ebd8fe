"""Usage at the ends of answers, and asking for it."""

import json
from typing import Any

import pytest

from kvasir_router.wire.usage import Usage, ask_for_usage, decode_usage, usage_in_body

OPENAI = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
CACHED = {**OPENAI, "prompt_tokens_details": {"cached_tokens": 4}}


@pytest.mark.parametrize(
    ("content", "usage"),
    [
        (OPENAI, Usage(5, 2, None)),
        (CACHED, Usage(5, 2, 4)),
        ({"prompt_tokens": 5, "total_tokens": 5}, Usage(5, 0, None)),
        ({**OPENAI, "prompt_tokens_details": None}, Usage(5, 2, None)),
        ({"input_tokens": 5, "output_tokens": 2}, Usage(5, 2, None)),
        ({"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 4}, Usage(5, 2, 4)),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 4},
            Usage(5, 0, 0),
        ),
        ({"input_tokens": 5, "cache_read_input_tokens": None}, Usage(5, 0, None)),
        ({"prompt_tokens": "5"}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_usage_objects(content: Any, usage: Usage | None) -> None:
    assert decode_usage(json.dumps(content).encode()) == usage


@pytest.mark.parametrize("spaces", [(",", ":"), (", ", ": ")])
def test_the_end_of_a_body(spaces: tuple[str, str]) -> None:
    text = 'a "usage": {"prompt_tokens": 9} é' * 100
    body = {"choices": [{"text": text}], "usage": CACHED, "prompt_logprobs": None}
    encoded = json.dumps(body, separators=spaces, ensure_ascii=False).encode()
    assert usage_in_body(encoded) == Usage(5, 2, 4)


def test_the_end_of_a_responses_body() -> None:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}
    assert usage_in_body(json.dumps({"usage": usage, "user": None}).encode()) == Usage(5, 2, 4)
    assert usage_in_body(b'{"usage":{"output_tokens":2}}') is None


@pytest.mark.parametrize("body", [b"", b"{}", b'{"usage":', b'"usage":null', b"\xff" * 2000])
def test_bodies_without(body: bytes) -> None:
    assert usage_in_body(body) is None


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ('{"model": "m", "stream": true}', None),
        (' {"model":"m","messages":[{"content":"stream_options"}]}', None),
        ('{"model":"m","messages":[{"content":"a","stream_options":1}]}', None),
        ('{"model": "m", "stream_options": null}', None),
        ('{"model": "m", "stream_options": {"include_usage": false, "x": 1}, "y": 1.50}', {"x": 1}),
    ],
)
def test_usage_is_asked_for(body: str, options: dict[str, Any] | None) -> None:
    sent = json.loads(body)
    made = ask_for_usage(body.encode(), sent.get("stream_options"))
    assert made is not None
    asked = json.loads(made)
    assert asked.pop("stream_options") == {**(options or {}), "include_usage": True}
    sent.pop("stream_options", None)
    assert asked == sent


@pytest.mark.parametrize("options", [{"include_usage": True}, 5, "x", []])
def test_bodies_that_stay_as_they_are(options: Any) -> None:
    assert ask_for_usage(json.dumps({"stream_options": options}).encode(), options) is None


@pytest.mark.parametrize("body", [b"", b"--x\r\n{}", b"no object"])
def test_what_is_no_object_stays_as_it_is(body: bytes) -> None:
    assert ask_for_usage(body, None) is None
