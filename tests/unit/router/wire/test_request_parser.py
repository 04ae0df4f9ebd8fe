"""The rules of the HTTP front: what is refused, and what a request becomes."""

import itertools
import re
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir_router.wire.http_request import BodyBudget, Limits, Request, RequestError
from kvasir_router.wire.long_bodies import body_scan
from kvasir_router.wire.request_parser import RequestParser


def parse(*reads: bytes, limits: Limits | None = None) -> list[Request]:
    requests: list[Request] = []
    parser = RequestParser(limits or Limits(), BodyBudget(2**30), requests.append, lambda: None)
    for read in reads:
        parser.feed(read)
    return requests


def refusal(*reads: bytes, limits: Limits | None = None) -> int:
    with pytest.raises(RequestError) as refused:
        parse(*reads, limits=limits)
    return refused.value.status


def head(*lines: bytes, first: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join((first, b"Host: a", *lines, b"", b""))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head(first=b"PUT /v1/files HTTP/1.1"), 405),
        (head(first=b"PATCH /v1/files HTTP/1.1"), 405),
        (head(first=b"BREW /v1/files HTTP/1.1"), 400),
        (head(first=b"POST / HTTP/2.0"), 505),
        (head(b"Expect: 1"), 417),
        (head(b"Expect: 200-ok"), 417),
        (head(b"Content-Encoding: gzip"), 415),
        (head(b"Content-Encoding: zstd"), 415),
        (head(first=b"POST /" + b"a" * 8192 + b" HTTP/1.1"), 414),
        (head(*[b"X-%d: a" % i for i in range(100)]), 431),
        (head(b"X: " + b"a" * 33_000), 431),
        (head(b"Content-Length: 67108865"), 413),
    ],
)
def test_refusals_with_their_own_status(data: bytes, status: int) -> None:
    assert refusal(data) == status


def test_a_header_that_never_ends_is_refused_at_the_limit() -> None:
    limits = Limits(header_bytes=4096)
    reads = [b"POST / HTTP/1.1\r\nHost: a\r\nX: ", *[b"a" * 100] * 50]
    assert refusal(*reads, limits=limits) == 431


def test_a_chunked_body_is_refused_when_it_passes_the_limit() -> None:
    limits = Limits(body_bytes=1000)
    start = head(b"Transfer-Encoding: chunked")
    chunk = b"64\r\n" + b"a" * 100 + b"\r\n"
    assert parse(start, *[chunk] * 10, limits=limits) == []
    assert refusal(start, *[chunk] * 11, limits=limits) == 413


def test_chunk_extensions_may_not_outweigh_the_body() -> None:
    start = head(b"Transfer-Encoding: chunked")
    assert refusal(start, *[b"1;x=" + b"y" * 9000 + b"\r\na\r\n"] * 10) == 400


def test_chunks_are_joined() -> None:
    [request] = parse(head(b"Transfer-Encoding: chunked") + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert request.body == b"abcde"
    assert request.lines == []


def test_headers_for_this_hop_and_for_the_fleet_are_dropped() -> None:
    [request] = parse(
        head(
            b"Authorization: Bearer k",
            b"Connection: keep-alive, X-Hop",
            b"X-Hop: 1",
            b"Keep-Alive: 5",
            b"TE: trailers",
            b"Proxy-Authorization: x",
            b"X-Kvasir-Fleet-Secret: guess",
            b"x-kvasir-anything: 1",
            b"Accept-Encoding: gzip",
            b"Content-Length: 2",
            b"traceparent: 00-1",
        )
        + b"{}"
    )
    assert request.lines == [b"traceparent: 00-1\r\n"]
    assert request.authorization == b"Bearer k"


def test_authorization_comes_once() -> None:
    with pytest.raises(RequestError, match="Authorization"):
        parse(head(b"Authorization: Bearer a", b"authorization: Bearer b"))


@pytest.mark.parametrize("given_id", [b"a b", b"", b"x" * 129, b"\xff"])
def test_an_unfit_request_id_is_replaced(given_id: bytes) -> None:
    [request] = parse(head(b"X-Request-Id: " + given_id, b"Content-Length: 0"))
    assert re.fullmatch(rb"[0-9a-f]{32}", request.request_id)


def test_request_ids_differ() -> None:
    one = head(b"Content-Length: 0")
    assert len({request.request_id for request in parse(one * 50)}) == 50


def test_a_fit_request_id_is_kept() -> None:
    [request] = parse(head(b"X-Request-ID: req-1", b"Content-Length: 0"))
    assert request.request_id == b"req-1"


@pytest.mark.parametrize(
    ("data", "keep_alive"),
    [
        (head(first=b"GET / HTTP/1.1"), True),
        (head(b"Connection: close", first=b"GET / HTTP/1.1"), False),
        (head(b"Connection: keep-alive", first=b"GET / HTTP/1.0"), False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
    ],
)
def test_keep_alive(data: bytes, keep_alive: bool) -> None:
    [request] = parse(data)
    assert request.keep_alive is keep_alive


BODIES = st.lists(st.binary(max_size=300), max_size=4)


@given(bodies=BODIES, chunked=st.booleans(), cuts=st.sets(st.integers(0, 2000), max_size=8))
@settings(max_examples=max(150, settings.default.max_examples))
def test_any_split_into_reads_gives_the_same_requests(
    bodies: list[bytes], chunked: bool, cuts: set[int]
) -> None:
    data = b""
    for body in bodies:
        if chunked:
            data += head(b"Transfer-Encoding: chunked")
            data += b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            data += b"0\r\n\r\n"
        else:
            data += head(b"Content-Length: %d" % len(body)) + body
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    reads = [data[start:end] for start, end in itertools.pairwise(places)]
    assert [request.body for request in parse(*reads)] == bodies


FRAGMENTS = st.sampled_from(
    (
        *(
            b"POST ",
            b"GET ",
            b"/v1/x",
            b" HTTP/1.1",
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"Host: a",
            b": ",
        ),
        *(b"Content-Length: 5", b"Transfer-Encoding: chunked", b"0\r\n", b"Expect: x", b"\0"),
    )
)


@given(st.lists(st.one_of(FRAGMENTS, st.binary(max_size=40)), max_size=30))
@settings(max_examples=max(400, settings.default.max_examples))
@pytest.mark.slow
def test_no_input_does_anything_but_parse_or_be_refused(reads: list[bytes]) -> None:
    requests: list[Request] = []
    parser = RequestParser(Limits(), BodyBudget(2**30), requests.append, lambda: None)
    with suppress(RequestError):
        for read in reads:
            parser.feed(read)
    assert all(request.path.startswith(("/", "*")) for request in requests)


def test_limits_hold_to_the_byte() -> None:
    limits = Limits(body_bytes=4)
    [request] = parse(head(b"Content-Length: 4") + b"abcd", limits=limits)
    assert request.body == b"abcd"
    assert refusal(head(b"Content-Length: 5"), limits=limits) == 413
    start, four = head(b"Transfer-Encoding: chunked"), b"4\r\nabcd\r\n"
    [request] = parse(start + four + b"0\r\n\r\n", limits=limits)
    assert request.body == b"abcd"
    assert refusal(start + four + b"1\r\ne\r\n", limits=limits) == 413


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((b"Connection: Upgrade", b"Upgrade: websocket"), 400),
        ((b"Content-Length: 1e3",), 400),
        ((b"Content-Length: " + b"1" * 19,), 400),
        ((b"x-request-timeout: 0",), 400),
        ((b"Authorization: a", b"Authorization: b"), 400),
    ],
)
def test_headers_that_are_refused(lines: tuple[bytes, ...], status: int) -> None:
    assert refusal(head(*lines)) == status


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_is_joined_as_it_comes(chunked: bool) -> None:
    """At its end, joining would take as long at once as it is long, and its memory once more."""
    assert body_scan.build()
    size, piece = 16 << 20, bytes(range(256)) * 256
    requests: list[Request] = []
    parser = RequestParser(Limits(), BodyBudget(2**30), requests.append, lambda: None)
    parser.feed(head(b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size))
    tracemalloc.start()
    for _ in range(size // len(piece)):
        parser.feed(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    if chunked:
        parser.feed(b"0\r\n\r\n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert requests[0].body == piece * (size // len(piece))
    assert requests[0].scan is not None, "it is read as it comes, too"
    assert peak < 1.5 * size


def test_a_body_that_is_given_up_is_held_no_longer() -> None:
    parser = RequestParser(Limits(), BodyBudget(2**30), lambda request: None, lambda: None)
    parser.feed(head(b"Content-Length: 1000000") + b"x" * 500_000)
    tracemalloc.start()
    parser.abandon()
    parser.feed(b"")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 10_000
    assert parser._body._long is None


def test_a_header_may_be_as_long_as_its_limit() -> None:
    """The target, and each header's name and value and 4 bytes around them."""
    lines = (b"X-Forwarded: 12345", b"Authorization: Bearer k", b"TE: trailers", b"Expires: 0")
    whole = head(*lines, first=b"GET /v1/models HTTP/1.1")
    size = len(b"/v1/models") + sum(len(line) + 2 for line in (b"Host: a", *lines))
    [request] = parse(whole, limits=Limits(header_bytes=size))
    assert request.target == b"/v1/models"
    assert refusal(whole, limits=Limits(header_bytes=size - 1)) == 431


def test_a_target_and_the_number_of_headers_may_be_at_their_limits() -> None:
    limits = Limits(target_bytes=10, headers=4)
    lines = (b"X-A: 1", b"Authorization: Bearer k", b"TE: trailers")
    [request] = parse(head(*lines, first=b"GET /v1/models HTTP/1.1"), limits=limits)
    assert request.path == "/v1/models"
    assert refusal(head(first=b"GET /v1/models/ HTTP/1.1"), limits=limits) == 414
    for line in (b"X-B: 1", b"Keep-Alive: 5"):
        assert refusal(head(*lines, line, first=b"GET / HTTP/1.1"), limits=limits) == 431


def test_a_header_that_does_not_end_may_grow_to_the_limit() -> None:
    limits = Limits(header_bytes=4096)
    begin = b"GET / HTTP/1.1\r\nHost: a\r\nX: "
    reads = [begin, b"a" * 2000, b"a" * 2096]
    assert parse(*reads, limits=limits) == []
    assert refusal(*reads, b"a", limits=limits) == 431
    [request] = parse(begin, b"a" * 2000, b"\r\n\r\n", limits=limits)
    assert request.lines == [b"X: " + b"a" * 2000 + b"\r\n"]


def test_framing_may_be_64_kib_and_16_bytes_for_each_byte_of_the_body() -> None:
    start, data = head(b"Transfer-Encoding: chunked"), b"a" * 100
    one = b"64\r\n" + data + b"\r\n"
    room = 64 * 1024 - len(start) - len(one) + 16 * len(data)
    extension = b"1;" + b"x" * (room - 2)
    assert parse(start, one, extension) == []
    assert refusal(start, one, extension, b"x") == 400
    assert refusal(start, one, extension + b"x") == 400


def test_what_is_written_for_each_chunk_is_forgotten_with_its_request() -> None:
    start = head(b"Transfer-Encoding: chunked")
    one = start + b"1;" + b"x" * 40_000 + b"\r\na\r\n"
    requests = parse(one, b"0\r\n\r\n", one, b"0\r\n\r\n")
    assert [request.body for request in requests] == [b"a", b"a"]


def test_a_length_may_have_eighteen_digits() -> None:
    limits = Limits(body_bytes=10**18)
    parser = RequestParser(limits, BodyBudget(10**18), lambda request: None, lambda: None)
    parser.feed(head(b"Content-Length: " + b"9" * 18))
    assert parser.missing == 10**18 - 1
    assert refusal(head(b"Content-Length: " + b"9" * 19), limits=limits) == 400


def test_what_is_missing_and_what_has_come() -> None:
    parser = RequestParser(Limits(), BodyBudget(2**30), lambda request: None, lambda: None)
    states = []
    for read in (b"POST / HTTP/1.1\r\n", b"Host: a\r\nContent-Length: 9\r\n\r\n", b"abc", b"d" * 6):
        parser.feed(read)
        states.append((parser.receiving, parser.in_body, parser.missing, parser.received))
    assert states == [
        (True, False, 0, 0),
        (True, True, 9, 0),
        (True, True, 6, 3),
        (False, False, 0, 9),
    ]


def test_only_a_request_with_a_body_is_announced_and_told_to_go_on() -> None:
    heard: list[str] = []
    parser = RequestParser(
        Limits(),
        BodyBudget(2**30),
        lambda request: heard.append("request"),
        lambda: heard.append("continue"),
        lambda request: heard.append("head"),
    )
    waits = b"Expect: 100-continue"
    for lines, body, said in (
        ((waits, b"Content-Length: 1"), b"a", ["head", "continue", "request"]),
        ((waits, b"Transfer-Encoding: chunked"), b"0\r\n\r\n", ["head", "continue", "request"]),
        ((b"Content-Length: 1",), b"a", ["head", "request"]),
        ((waits, b"Content-Length: 0"), b"", ["request"]),
        ((waits,), b"", ["request"]),
    ):
        parser.feed(head(*lines) + body)
        assert heard == said
        heard.clear()
    parser.feed(head(waits, b"Content-Length: 1", first=b"POST / HTTP/1.0") + b"a")
    assert heard == ["head", "request"]


def test_bodies_are_counted_until_they_are_given_back() -> None:
    budget, requests = BodyBudget(2**30), []
    parser = RequestParser(Limits(), budget, requests.append, lambda: None)
    for count in (1, 2, 3):
        parser.feed(head(b"Content-Length: 10") + b"0123456789")
        assert budget.used == 10 * count
    parser.give_back(10)
    assert budget.used == 20
    parser.feed(head(b"Content-Length: 10") + b"01234")
    parser.abandon()
    assert budget.used == 0


def test_a_body_of_known_length_is_refused_before_it_comes_when_there_is_no_room() -> None:
    message = head(b"Content-Length: 20000")
    for parsed_before in (0, 1):
        budget = BodyBudget(30_000)
        parser = RequestParser(Limits(), budget, lambda request: None, lambda: None)
        for _ in range(parsed_before):
            parser.feed(message + b"x" * 20_000)
            parser.give_back(20_000)
        budget.take(10_001, 10_001)
        with pytest.raises(RequestError) as refused:
            parser.feed(message)
        assert refused.value.status == 503


@pytest.mark.parametrize(
    ("lines", "first", "status"),
    [
        ((b"Host: b",), b"GET / HTTP/1.1", 400),
        ((b"Host: b",), b"GET / HTTP/1.0", 400),
        ((b"Transfer-Encoding: chunked",), b"POST / HTTP/1.0", 400),
        ((b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), b"POST / HTTP/1.1", 400),
        ((b"Transfer-Encoding: br, chunked",), b"POST / HTTP/1.1", 400),
        ((b"Transfer-Encoding: gzip, chunked",), b"POST / HTTP/1.1", 400),
        ((b"Content_Length: 1",), b"GET / HTTP/1.1", 400),
        ((), b"GET * HTTP/1.1", 400),
    ],
)
def test_requests_that_two_servers_could_read_in_two_ways(
    lines: tuple[bytes, ...], first: bytes, status: int
) -> None:
    assert refusal(head(*lines, first=first)) == status


def test_a_host_is_needed_but_in_http_1_0() -> None:
    assert refusal(b"GET / HTTP/1.1\r\n\r\n") == 400
    [request] = parse(b"GET / HTTP/1.0\r\n\r\n")
    assert request.http10
    assert not request.keep_alive
    [request] = parse(head(first=b"OPTIONS * HTTP/1.1"))
    assert request.path == "*"
    assert not request.http10


def test_trailers_are_refused() -> None:
    start = head(b"Transfer-Encoding: chunked")
    assert refusal(start + b"1\r\na\r\n0\r\nX-Late: 1\r\n\r\n") == 400
