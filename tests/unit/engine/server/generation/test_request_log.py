"""What --enable-log-requests writes of a request."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

SECRET = "sk-very-secret"
BODY = {
    "prompt": "the words of a user",
    "max_tokens": 2,
    "temperature": 0.5,
    "stop": ["my stop"],
    "user": "somebody",
}


async def logged(start_server: Any, **settings: Any) -> list[dict[str, Any]]:
    server = await start_server(api_keys=(SECRET,), **settings)
    headers = {"authorization": f"Bearer {SECRET}", "x-request-id": "mine"}
    with capture_logs() as lines:
        answer = await server.post("/v1/completions", BODY, headers=headers)
    assert answer.status_code == 200
    return [dict(line) for line in lines if line["event"] == "request"]


async def test_nothing_is_logged_unless_asked_for(start_server: Any) -> None:
    assert await logged(start_server) == []


async def test_lengths_and_parameters_are_logged_and_no_text(start_server: Any) -> None:
    [line] = await logged(start_server, enable_log_requests=True)
    assert (line["request_id"], line["prompt_tokens"]) == ("mine", 19)
    assert line["params"] == {"temperature": 0.5, "stop": "1 entries", "max_tokens": 2}
    assert not [word for word in ("words", "my stop", SECRET) if word in str(line)]
    assert "prompt" not in line


async def test_a_prompt_is_cut(start_server: Any) -> None:
    [line] = await logged(start_server, enable_log_requests=True, max_log_len=9)
    assert line["prompt"] == "the words"
