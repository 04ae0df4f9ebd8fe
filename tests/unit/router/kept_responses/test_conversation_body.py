"""Bodies and answers whose conversation is kept."""

import json

import msgspec
import pytest

from kvasir_router.kept_responses.conversation_body import (
    continued,
    id_to_keep,
    input_items,
    response_of_events,
)

MESSAGE = {"type": "message", "role": "user", "content": "hi"}
OUTPUT = {"type": "message", "role": "assistant", "content": [], "id": "msg_1"}
RESPONSE = json.dumps({"id": "r", "status": "completed", "created_at": 9, "output": [OUTPUT]})


@pytest.mark.parametrize("given", ['"So?"', ' [{"role": "user", "content": "So?"}]'])
def test_earlier_items_and_the_output_come_before_the_input(given: str) -> None:
    body = b'{"model": "m", "temperature": 1.10, "input": %b}' % given.encode()
    made = continued(body, RESPONSE.encode(), json.dumps([MESSAGE]).encode())
    assert b'"temperature":1.10' in made
    items = json.loads(made)["input"]
    assert items[:2] == [MESSAGE, OUTPUT]
    assert (items[2]["role"], items[2]["content"]) == ("user", "So?")
    assert json.loads(input_items(made)) == items


def test_without_input_the_conversation_stays() -> None:
    assert json.loads(input_items(b'{"model": "m"}')) == []
    assert json.loads(continued(b"{}", RESPONSE.encode(), b"[]"))["input"] == [OUTPUT]


@pytest.mark.parametrize(
    ("status", "kept"), [("completed", True), ("incomplete", True), ("failed", False), ("", False)]
)
def test_only_whole_responses_are_kept(status: str, kept: bool) -> None:
    response = json.dumps({"id": "r", "status": status, "created_at": 9}).encode()
    assert id_to_keep(response) == ("r" if kept else None)


def test_the_last_event_has_the_response() -> None:
    text = json.dumps({"text": "\ndata: {}"})
    events = (
        ': kvasir {"u":{}}\nevent: response.completed\n'
        f'data: {{"type":"response.completed","response":{text}}}\n\n'
    )
    assert response_of_events(events.encode()) == text.encode()


@pytest.mark.parametrize("events", [b"", b"\ndata: x", b"\ndata: {}"])
def test_other_events_have_none(events: bytes) -> None:
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        response_of_events(events)
