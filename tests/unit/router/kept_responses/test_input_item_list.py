"""Pages of input items."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from kvasir_router.kept_responses.input_item_list import listed_items
from kvasir_router.wire.responses import RefusalError

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "rain"},
    {"type": "reasoning", "id": "rs_mine", "summary": []},
    {"role": "assistant", "content": "Rain."},
]


def page(query: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(listed_items("r", json.dumps(ITEMS).encode(), query.encode()))
    return made


def test_each_is_of_the_clients_types() -> None:
    listed = page("order=asc")
    for item in listed["data"]:
        TypeAdapter(ResponseItem).validate_python(item)
    kinds = [item["type"] for item in listed["data"]]
    assert kinds == ["message", "function_call", "function_call_output", "reasoning", "message"]
    assert listed["data"][3]["id"] == "rs_mine"
    assert len({item["id"] for item in listed["data"]}) == 5
    assert (listed["object"], listed["has_more"]) == ("list", False)


def test_pages_join_to_the_whole() -> None:
    for order in ("asc", "desc"):
        whole = page(f"order={order}")["data"]
        joined, after = [], ""
        while True:
            part = page(f"order={order}&limit=2{after}")
            joined += part["data"]
            after = f"&after={part['last_id']}"
            if not part["has_more"]:
                break
        assert joined == whole
    assert page("")["data"] == page("order=asc")["data"][::-1]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=none"])
def test_bad_queries_are_refused_by_name(query: str) -> None:
    with pytest.raises(RefusalError) as refused:
        page(query)
    error = json.loads(refused.value.answer.body)["error"]
    assert (refused.value.answer.status, error["param"]) == (400, query.partition("=")[0])
