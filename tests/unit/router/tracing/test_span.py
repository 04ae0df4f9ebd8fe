"""Trace contexts in headers."""

import pytest

from kvasir_router.tracing.span import begin_span
from kvasir_router.wire.http_request import Request

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LINE = f"Traceparent: 00-{TRACE}-{PARENT}-01\r\n".encode()


def request(*lines: bytes) -> Request:
    made = Request()
    made.lines = [b"Accept: */*\r\n", *lines]
    return made


def sent(made: Request) -> list[str]:
    return [line.decode().strip() for line in made.lines if line.lower().startswith(b"traceparent")]


def test_a_callers_trace_goes_on_with_the_router_as_parent() -> None:
    made = request(LINE, b"tracestate: a=1\r\n")
    span = begin_span(made, ratio=0.0)
    assert (span.trace_id, span.parent_id) == (int(TRACE, 16), int(PARENT, 16))
    assert sent(made) == [f"traceparent: 00-{TRACE}-{span.span_id:016x}-01"]
    assert span.span_id != span.parent_id
    assert b"tracestate: a=1\r\n" in made.lines


def test_without_one_a_trace_begins_here() -> None:
    made = request()
    span = begin_span(made, ratio=1.0)
    assert 0 < span.trace_id < 1 << 128
    assert span.parent_id == 0
    assert sent(made) == [f"traceparent: 00-{span.trace_id:032x}-{span.span_id:016x}-01"]


def test_only_a_part_of_new_traces_is_sampled() -> None:
    assert begin_span(request(), ratio=0.0) is None
    count = sum(begin_span(request(), ratio=0.3) is not None for _ in range(2000))
    assert 450 < count < 750


def test_what_the_caller_does_not_sample_passes_unchanged() -> None:
    line = LINE.replace(b"-01\r\n", b"-00\r\n")
    made = request(line)
    assert begin_span(made, ratio=1.0) is None
    assert line in made.lines


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-xx",
    ],
)
def test_an_invalid_header_is_replaced(value) -> None:
    made = request(f"traceparent: {value}\r\n".encode())
    span = begin_span(made, ratio=1.0)
    assert span.trace_id != int(TRACE, 16)
    assert sent(made) == [f"traceparent: 00-{span.trace_id:032x}-{span.span_id:016x}-01"]


def test_a_later_version_is_understood() -> None:
    made = request(f"traceparent: 01-{TRACE}-{PARENT}-01-more\r\n".encode())
    assert begin_span(made, ratio=0.0).trace_id == int(TRACE, 16)
