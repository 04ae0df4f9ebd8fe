"""Members of long bodies that are replaced or added where the bodies lie."""

import json
import tracemalloc
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies import body_scan
from kvasir_router.wire.long_bodies.body_edit import append_member, replace_bytes, replace_member
from kvasir_router.wire.long_bodies.body_scan import outline_of

NAMES = ("messages", "model", "prompt", "cache_salt")
values = st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=3)
bodies = st.dictionaries(st.sampled_from(NAMES), values)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    assert body_scan.build(), "these tests need a C compiler"


def request_of(body: bytes) -> Request:
    request = Request()
    request.buffer = BytesIO(body)
    request.body = request.buffer.getvalue()
    request.outline = outline_of(request.body, NAMES)
    return request


def members(request: Request) -> dict[str, Any]:
    """As its outline tells of them."""
    outline = request.outline
    assert outline is not None
    return {name: json.loads(outline.raw(request.body, name)) for name in outline.members}


@given(body=bodies, value=st.text(max_size=40), around=st.sampled_from(["", " ", " \n\t"]))
def test_the_body_and_its_outline_say_what_was_put_there(body, value, around) -> None:
    name = next(iter(body), None)
    request = request_of(f"{around}{json.dumps(body)}{around}".encode())
    assert request.outline is not None
    if name is not None:
        replace_member(request, request.outline, name, json.dumps(value).encode())
        body = body | {name: value}
        assert json.loads(request.body) == members(request) == body
    if body:
        append_member(request, request.outline, "cache_salt", b'"salt"')
        assert json.loads(request.body) == members(request) == body | {"cache_salt": "salt"}


@given(body=st.binary(), value=st.binary(max_size=9), data=st.data())
def test_any_bytes_are_replaced(body: bytes, value: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, len(body)))
    request = Request()
    request.body = body
    replace_bytes(request, start, end, value)
    assert request.body == body[:start] + value + body[end:]


@pytest.mark.parametrize("model", ["m", "a-longer-name", "a-name-of-more-bytes-than-that"])
@pytest.mark.parametrize("first", [True, False])
def test_no_copy_is_made(model: str, first: bool) -> None:
    members_ = [b'"model":"a-longer-name"', b'"prompt":"%b"' % (b"x" * (8 << 20))]
    tracemalloc.start()
    request = request_of(b"{%b}" % b",".join(members_ if first else members_[::-1]))
    tracemalloc.reset_peak()
    before, size = tracemalloc.get_traced_memory()[0], len(request.body)
    outline = request.outline
    assert outline is not None
    replace_member(request, outline, "model", json.dumps(model).encode())
    assert request.outline is not None
    append_member(request, request.outline, "cache_salt", b'"salt"')
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - before < size / 3
    assert members(request)["model"] == model
    assert members(request)["cache_salt"] == "salt"
