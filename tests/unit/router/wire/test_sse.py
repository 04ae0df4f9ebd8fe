"""Cutting event streams at the ends of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.wire.sse import EventCutter


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_the_start_of_an_event_is_held_until_its_end(end: bytes) -> None:
    cutter = EventCutter()
    assert cutter.whole(b"data: 1" + end, False) == b"data: 1" + end
    assert cutter.whole(b"data: 2" + end + b"data: ", False) == b"data: 2" + end
    assert cutter.whole(b"3", False) == b""
    assert cutter.whole(end, False) == b"data: 3" + end


def test_what_is_held_comes_with_the_last_bytes() -> None:
    cutter = EventCutter()
    assert cutter.whole(b"data: 1", False) == b""
    assert cutter.whole(b" and no end", True) == b"data: 1 and no end"


def test_an_event_beyond_the_bound_is_passed_in_parts() -> None:
    cutter = EventCutter()
    sent = b"".join(cutter.whole(b"x" * 65536, False) for _ in range(16))
    assert len(sent) >= 16 * 65536 - 256 * 1024


@given(st.lists(st.sampled_from([b"data: a", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b":"])))
def test_bytes_pass_unchanged_and_only_whole_events_before_the_end(parts: list[bytes]) -> None:
    cutter = EventCutter()
    sent = b""
    for part in parts:
        sent += cutter.whole(part, False)
        assert sent == b"" or sent.endswith((b"\n\n", b"\r\n\r\n"))
    assert sent + cutter.whole(b"", True) == b"".join(parts)
