"""Event streams: cut at the ends of events, and looked through for data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.wire.sse import DataLines, EventCutter

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
"""Event of Anthropic's that keeps a connection open."""


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


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([b"data: 1\n\n"], [True]),
        ([b": ping\n\n", b"\n", b"\r\n", b": data: 1\n\n"], [False] * 4),
        ([b"event: message\n", b"id: 1\nretry: 2\n\n"], [False] * 2),
        ([b": ping\n\ndata: 1\n\n", b": ping\r\n\r\nevent: a\r\ndata: 1\r\n\r\n"], [True] * 2),
        ([b"data: a long", b" line ", b": of parts\n", b"\n"], [True, True, True, False]),
        ([b"da", b"ta", b": 1\n\n", b": ping\n\n"], [False, False, True, False]),
        ([b": pi", b"ng ", b"data: 1\n", b"data: 1\n"], [False, False, False, True]),
        ([b"data: 1\n\n: ping", b" data:\n\n", b""], [True, False, False]),
        ([PING, PING + b"\n", PING.replace(b"\n", b"\r\n"), PING.replace(b" ", b"")], [False] * 4),
        ([PING + b"event: message_stop\ndata: {}\n\n", b"data: 1\n\n" + PING], [True] * 2),
        (
            [b"event: ping\n", b'data: {"type"', b': "ping"}\n', b"\n", b"data: 1\n"],
            [False] * 4 + [True],
        ),
        ([b"event: pi", b"ng\ndata: {}\n\n", PING[:-1], b"\ndata: 1\n\n"], [False] * 3 + [True]),
        ([b"event: ping\r", b"\ndata: {}\r", b"\n\r", b"\ndata: 1"], [False] * 3 + [True]),
        (
            [b"event: pingpong\ndata: {}\n\n", b'data: "ping"\n\n', b"event: a\ndata: ping"],
            [True] * 3,
        ),
        ([b"event: ping\nevent: a\ndata: 1\n\n", b"event: ping\n\ndata: 1\n\n"], [True] * 2),
    ],
)
def test_data_lines_are_told_from_comments_however_they_are_cut(
    parts: list[bytes], found: list[bool]
) -> None:
    lines = DataLines()
    assert [lines.found_in(part) for part in parts] == found


PIECES = [
    b"data:",
    b"da",
    b"ta:",
    b" x",
    b"\n",
    b"\r\n",
    b":",
    b"event: ping",
    b"ev",
    b"ent:",
    b" ping",
]


@given(st.lists(st.sampled_from(PIECES)))
def test_data_is_found_in_the_parts_as_in_the_whole(parts: list[bytes]) -> None:
    lines = DataLines()
    found = [lines.found_in(part) for part in parts]
    name, expected = b"", False
    for line in b"".join(parts).split(b"\n"):
        if line.startswith(b"event:"):
            name = line[6:].strip()
        elif line.startswith(b"data:"):
            expected |= name != b"ping"
        elif not line.strip(b"\r"):
            name = b""
    assert any(found) == expected
