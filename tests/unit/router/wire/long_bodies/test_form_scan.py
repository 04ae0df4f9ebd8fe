"""Forms that are read in pieces: what is found is what the whole holds."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.forms import AUDIO, TYPE, form, part

from kvasir_router.wire.form import form_of
from kvasir_router.wire.http_request import BodyBudget, Limits, Request
from kvasir_router.wire.long_bodies.form_scan import FormScan
from kvasir_router.wire.request_parser import RequestParser

VALUES = [b"m", b"", b"\r", b"\r\n--xy", b"\r\n--xyz?", b"\r\nm\r\n", b"m" * 1024, b"m" * 1025]


@given(st.data(), st.sampled_from(VALUES), st.sampled_from(["", "\r\nX:", "\r\nX: 1"]))
@settings(max_examples=300, deadline=None)
def test_pieces_tell_what_the_whole_does(data: st.DataObject, value: bytes, more: str) -> None:
    """Names, values and boundaries may be cut anywhere."""
    body = form(part("stream", b"true"), part("model", value, more), part("file", b"\r\n-"))
    scan, at = FormScan(TYPE), 0
    for stop in sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=40))):
        scan.feed(body[at:stop])
        at = stop
    scan.feed(body[at:])
    found = scan.end()
    assert found == form_of(body, TYPE)
    assert found.values[b"model"] == value[: len(value) % 1025]
    assert found.values[b"model"] == body[found.model_start : found.model_end]


def test_a_form_byte_by_byte() -> None:
    body = form(AUDIO, part("model", b"\r\n--xym"))
    scan = FormScan(TYPE)
    for at in range(len(body)):
        scan.feed(body[at : at + 1])
    found = scan.end()
    assert body[found.model_start : found.model_end] == b"\r\n--xym"


def test_a_long_form_is_read_as_it_comes() -> None:
    """Whole, it would take a turn of a millisecond for each MiB."""
    body = form(part("file", b"x" * 200_000), part("model", b"m"))
    requests: list[Request] = []
    parser = RequestParser(Limits(), BodyBudget(2**30), requests.append, lambda: None)
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: %b\r\n"
    parser.feed(head % TYPE + b"Content-Length: %d\r\n\r\n" % len(body))
    for at in range(0, len(body), 1000):
        parser.feed(body[at : at + 1000])
    scan = requests[0].scan
    assert isinstance(scan, FormScan)
    found = scan.end()
    assert found.values == {b"file": b"", b"model": b"m"}
    assert requests[0].body[found.model_start : found.model_end] == b"m"
