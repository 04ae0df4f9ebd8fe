"""`truncation`: what of a long conversation is left."""

from __future__ import annotations

from typing import Any

import pytest

PATH = "/v1/responses"
LONG = "x" * 150


def turn(number: int) -> list[dict[str, Any]]:
    call = f"c{number}"
    return [
        {"role": "user", "content": f"{number}{LONG}"},
        {"type": "function_call", "call_id": call, "name": "f", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": call, "output": "rain"},
    ]


def body(turns: int, **fields: Any) -> dict[str, Any]:
    items = [item for number in range(turns) for item in turn(number)]
    given = {"instructions": "Be", "input": items, "truncation": "auto", "max_output_tokens": 9}
    return {**given, **fields}


async def test_the_oldest_turns_are_left_out_whole(start: Any, prompt_of: Any) -> None:
    server = await start()
    made = (await server.post(PATH, body(8))).json()
    assert made["truncation"] == "auto"
    prompt = prompt_of(server)
    assert prompt.startswith("<system>Be<user>6xxx")
    assert prompt.count("<user>") == 2
    assert prompt.endswith("<tool>rain<assistant>")


async def test_what_fits_stays(start: Any, prompt_of: Any) -> None:
    server = await start()
    assert (await server.post(PATH, body(2))).status_code == 200
    assert prompt_of(server).startswith("<system>Be<user>0xxx")


@pytest.mark.parametrize("fields", [{"truncation": "disabled"}, {"max_output_tokens": 500}])
async def test_what_cannot_fit_is_refused(start: Any, fields: dict[str, Any]) -> None:
    server = await start()
    answer = await server.post(PATH, body(8, **fields))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
