from __future__ import annotations

import json
import logging

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def error_of(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    [(key, error)] = answer.json().items()
    assert key == "error"
    assert set(error) >= {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"tools": None, "functions": None, "modalities": ["text"], "store": False, "user": "u"},
        {"n": 1, "best_of": 1},
    ],
)
async def test_fields_that_ask_for_nothing_are_taken(server, fields):
    answer = await server.post("/v1/chat/completions", {**CHAT, "max_tokens": 3, **fields})
    assert answer.status_code == 200


async def test_an_unknown_field_is_ignored_and_logged_once(server, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            body = {**CHAT, "max_tokens": 1, "frobnicate": 1}
            assert (await server.post("/v1/chat/completions", body)).status_code == 200
    logged = [record.message for record in caplog.records]
    assert logged.count("ignoring unknown request field 'frobnicate'") == 1


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"{", "invalid_json", "truncated (1 bytes"),
        (b"", "invalid_json", "The body is empty; send a JSON object."),
        (b'{"prompt": "a",}', "invalid_json", "byte 15"),
        (rb'{"prompt": "\ud800"}', "invalid_json", "JSON"),
        (b"[1]", "invalid_json", "JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_json", "NaN"),
        (b'{"prompt": "\xff\xfe"}', "invalid_utf8", "UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", "nested"),
    ],
)
async def test_what_is_not_json_says_where(server, content, code, words):
    error = error_of(await server.post("/v1/completions", content=content), 400)
    assert error["code"] == code
    assert words in error["message"]


async def test_a_body_over_the_limit_is_refused(start_server):
    server = await start_server(max_body_bytes=1000)
    big = {"prompt": "x" * 1000}
    error = error_of(await server.post("/v1/completions", big), 413)
    assert "--max-body-bytes" in error["message"]

    async def chunks():
        for _ in range(20):
            yield b" " * 100

    error_of(await server.post("/v1/completions", content=chunks()), 413)
    fits = json.dumps({"prompt": "x", "max_tokens": 1}).encode().ljust(1000)
    assert (await server.post("/v1/completions", content=fits)).status_code == 200
