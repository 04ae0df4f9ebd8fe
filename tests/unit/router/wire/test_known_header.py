"""Headers that come again are recognised; what they make is what the parser would have made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.wire.http_request import BodyBudget, Limits, Request, RequestError
from kvasir_router.wire.known_header import MAX_BYTES, KnownHead
from kvasir_router.wire.request_parser import RequestParser

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n"
    b"Content-Length: %d\r\nX-Own: 1\r\nConnection-Hint: x\r\n\r\n"
)


def message(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


def seen(request: Request) -> tuple[object, ...]:
    values = {name: getattr(request, name) for name in dir(request) if not name.startswith("_")}
    return tuple(
        each for name, each in values.items() if name != "request_id" and not callable(each)
    )


def parse(reads: list[bytes], *, each_new: bool = False) -> list[Request]:
    """All on one connection, or each read on one of its own."""
    requests: list[Request] = []
    parser = RequestParser(Limits(), BodyBudget(2**30), requests.append, lambda: None)
    for read in reads:
        if each_new:
            parser = RequestParser(Limits(), BodyBudget(2**30), requests.append, lambda: None)
        parser.feed(read)
    return requests


@given(
    st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=6),
    st.lists(st.integers(1, 400), max_size=8),
)
def test_however_reads_are_cut_the_requests_are_the_same(
    bodies: list[bytes], sizes: list[int]
) -> None:
    messages = [message(body) for body in bodies]
    stream, reads = b"".join(messages), []
    for size in sizes:
        reads.append(stream[:size])
        stream = stream[size:]
    got = parse([read for read in (messages[0], *reads, stream) if read])
    assert list(map(seen, got)) == list(map(seen, parse([messages[0], *messages], each_new=True)))
    assert len({request.request_id for request in got}) == len(got)


def test_a_request_of_another_kind_between_them_is_parsed() -> None:
    other = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    chunked = (
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    )
    one = message(b"one")
    got = parse([one, one + other + one, chunked, one, one[:-1], one[-1:] + other])
    assert [request.body for request in got] == [
        *(b"one", b"one", b"", b"one", b"a", b"one", b"one", b"")
    ]


def test_what_one_request_gets_the_next_does_not() -> None:
    requests: list[Request] = []
    parser = RequestParser(Limits(), BodyBudget(2**30), requests.append, lambda: None)
    for _ in range(3):
        parser.feed(message(b"body"))
        requests[-1].lines.append(b"X-Added: 1\r\n")
        requests[-1].answer_lines = b"X-Answer: 1\r\n"
    assert requests[2].lines == [b"X-Own: 1\r\n", b"Connection-Hint: x\r\n", b"X-Added: 1\r\n"]


@pytest.mark.parametrize(
    ("second", "status"),
    [
        (HEAD.replace(b"%d", b"+4") + b"body", 400),
        (HEAD.replace(b"%d", b"4 4") + b"body", 400),
        (HEAD.replace(b"%d", b"4\r\nContent-Length: 5") + b"body", 400),
        (HEAD.replace(b"%d", b"4\r\nTransfer-Encoding: chunked") + b"body", 400),
        (HEAD.replace(b"%d", b"99999999") + b"body", 413),
    ],
)
def test_a_header_that_only_begins_alike_is_judged_anew(second: bytes, status: int) -> None:
    parser = RequestParser(Limits(), BodyBudget(2**30), lambda request: None, lambda: None)
    parser.feed(message(b"x" * 12_345_678))
    with pytest.raises(RequestError) as refused:
        parser.feed(second)
    assert refused.value.status == status


@pytest.mark.parametrize(
    "line",
    [b"Expect: 100-continue", b"Connection: close", b"X-Request-Id: mine", b"Connection: x-own"],
)
def test_what_is_about_one_request_is_parsed_each_time(line: bytes) -> None:
    head = HEAD.replace(b"X-Own: 1", b"X-Own: 1\r\n" + line)
    parser = RequestParser(Limits(), BodyBudget(2**30), lambda request: None, lambda: None)
    parser.feed(message(b"body", head))
    assert parser._known is None


@pytest.mark.parametrize("name", [b"Content-Length: ", b"content-length:", b"CONTENT-LENGTH: "])
def test_the_length_is_found_however_it_is_written(name: bytes) -> None:
    known = KnownHead.of(b"POST / HTTP/1.1\r\n" + name + b"12\r\nHost: a\r\n\r\n")
    assert known is not None
    again = b"POST / HTTP/1.1\r\n" + name + b"07\r\nHost: a\r\n\r\n"
    assert known.find(again + b"body") == (7, len(again))
    assert known.find(b"POST / HTTP/1.1\r\n" + name + b"123\r\nHost: a\r\n\r\n") is None
    assert known.find(b"POST / HTTP/1.1\r\n" + name + b"12") is None


def test_a_header_that_is_not_whole_is_not_recognised() -> None:
    whole = message(b"body")
    known = KnownHead.of(whole)
    assert known is not None
    end = len(whole) - len(b"body")
    assert [known.find(whole[:size]) for size in range(end)] == [None] * end
    assert known.find(whole) == (4, end)


def test_a_long_header_is_not_kept() -> None:
    head = b"POST / HTTP/1.1\r\nX: " + b"x" * MAX_BYTES + b"\r\nContent-Length: 1\r\n\r\n"
    assert KnownHead.of(head + b"a") is None


def test_a_header_is_kept_only_of_a_read_that_begins_with_it() -> None:
    def known(*reads: bytes) -> KnownHead | None:
        parser = RequestParser(Limits(), BodyBudget(2**30), lambda request: None, lambda: None)
        for read in reads:
            parser.feed(read)
        return parser._known

    one, bare = message(b"body"), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    assert known(one) is not None
    assert known(bare) is None
    assert known(bare, bare, one) is not None
    assert known(one[:-2], b"dy") is not None
    assert known(bare + one) is None
    assert known(one + bare) is None
    assert known(one[:20], one[20:]) is None


def test_after_four_headers_in_vain_none_is_kept() -> None:
    parser = RequestParser(Limits(), BodyBudget(2**30), lambda request: None, lambda: None)

    def own(number: int) -> bytes:
        return message(b"body", HEAD.replace(b"X-Own: 1", b"X-Own: %d" % number))

    for number in range(4):
        parser.feed(own(number))
    fourth = parser._known
    parser.feed(own(4))
    assert parser._known is fourth
    # One that comes again shows that the client repeats itself
    parser.feed(own(3))
    parser.feed(own(5))
    assert parser._known is not fourth


@pytest.mark.parametrize(("length", "known"), [(0, False), (1, True), (9, True)])
def test_a_known_header_has_any_body_but_none(length: int, known: bool) -> None:
    requests: list[Request] = []
    limits = Limits(body_bytes=9)
    parser = RequestParser(limits, BodyBudget(2**30), requests.append, lambda: None)
    parser.feed(message(b"body"))
    parser.feed(HEAD % length)
    assert parser._by_known is known
    parser.feed(b"x" * length)
    assert [request.body for request in requests] == [b"body", b"x" * length]
