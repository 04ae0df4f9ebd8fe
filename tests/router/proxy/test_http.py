"""The rules of the HTTP front: what is refused, and what a request becomes."""

import itertools
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir_router.proxy.http import Limits, Request, RequestError, RequestParser


def parse(*reads: bytes, limits: Limits | None = None) -> list[Request]:
    requests: list[Request] = []
    parser = RequestParser(limits or Limits(), requests.append, lambda: None)
    for read in reads:
        parser.feed(read)
    return requests


def refusal(*reads: bytes, limits: Limits | None = None) -> int:
    with pytest.raises(RequestError) as refused:
        parse(*reads, limits=limits)
    return refused.value.status


def head(*lines: bytes, first: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join((first, b"Host: a", *lines, b"", b""))


SMUGGLING = {
    "two equal lengths": head(b"Content-Length: 1", b"Content-Length: 1") + b"a",
    "two different lengths": head(b"Content-Length: 1", b"Content-Length: 2") + b"ab",
    "a list of lengths": head(b"Content-Length: 1, 1") + b"a",
    "signed length": head(b"Content-Length: +1") + b"a",
    "negative length": head(b"Content-Length: -1") + b"a",
    "hexadecimal length": head(b"Content-Length: 0x1") + b"a",
    "empty length": head(b"Content-Length:") + b"a",
    "length with a space inside": head(b"Content-Length: 1 1") + b"a",
    "length beyond 64 bits": head(b"Content-Length: 99999999999999999999") + b"a",
    "length and chunked": head(b"Content-Length: 1", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "chunked and length": head(b"Transfer-Encoding: chunked", b"Content-Length: 1") + b"0\r\n\r\n",
    "chunked twice": head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "chunked, chunked": head(b"Transfer-Encoding: chunked, chunked"),
    "chunked, identity": head(b"Transfer-Encoding: chunked, identity"),
    "identity": head(b"Transfer-Encoding: identity"),
    "gzip, chunked": head(b"Transfer-Encoding: gzip, chunked"),
    "xchunked": head(b"Transfer-Encoding: xchunked"),
    "quoted chunked": head(b'Transfer-Encoding: "chunked"'),
    "chunked with vertical tab": head(b"Transfer-Encoding: \x0bchunked"),
    "empty transfer encoding": head(b"Transfer-Encoding:"),
    "space before the colon": head(b"Content-Length : 1") + b"a",
    "tab before the colon": head(b"Transfer-Encoding\t: chunked"),
    "folded header": head(b"X-A: b", b" c"),
    "folded transfer encoding": head(b"Transfer-Encoding:", b" chunked"),
    "first header indented": b"POST / HTTP/1.1\r\n Host: a\r\n\r\n",
    "bare LF": b"POST / HTTP/1.1\nHost: a\n\n",
    "bare LF between headers": b"POST / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "bare CR in a value": head(b"X: a\rContent-Length: 5"),
    "NUL in a value": head(b"X: a\0b"),
    "control character in a name": head(b"X\x01: b"),
    "empty name": head(b": b"),
    "no colon": head(b"X"),
    "chunk size with sign": head(b"Transfer-Encoding: chunked") + b"+1\r\na\r\n0\r\n\r\n",
    "chunk size with 0x": head(b"Transfer-Encoding: chunked") + b"0x1\r\na\r\n0\r\n\r\n",
    "chunk size with underscore": head(b"Transfer-Encoding: chunked") + b"1_0\r\na\r\n0\r\n\r\n",
    "huge chunk size": head(b"Transfer-Encoding: chunked") + b"f" * 17 + b"\r\na",
    "chunk without its end": head(b"Transfer-Encoding: chunked") + b"1\r\nab\r\n0\r\n\r\n",
    "chunk ended by LF": head(b"Transfer-Encoding: chunked") + b"1\na\n0\n\n",
    "trailer": head(b"Transfer-Encoding: chunked") + b"0\r\nContent-Length: 5\r\n\r\n",
    "chunked in HTTP/1.0": head(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0"),
    "no host": b"POST / HTTP/1.1\r\nX: a\r\n\r\n",
    "two hosts": head(b"Host: b"),
    "absolute form": head(first=b"POST http://b/v1/completions HTTP/1.1"),
    "authority form": head(first=b"CONNECT b:443 HTTP/1.1"),
    "asterisk form": head(first=b"GET * HTTP/1.1"),
    "space in the target": head(first=b"POST /v1 /x HTTP/1.1"),
    "non-ASCII target": head(first=b"POST /v1/\xff HTTP/1.1"),
    "fragment of another request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "unknown method": head(first=b"BREW / HTTP/1.1"),
    "lower case method": head(first=b"post / HTTP/1.1"),
    "unknown version": head(first=b"POST / HTTP/1.2"),
    "upgrade": head(b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 1") + b"a",
    "dot segments": head(first=b"POST /v1/../admin HTTP/1.1"),
    "encoded dot segments": head(first=b"POST /v1/%2e%2E/admin HTTP/1.1"),
    "double slash": head(first=b"POST //v1/completions HTTP/1.1"),
    "backslash": head(first=b"POST /v1\\..\\x HTTP/1.1"),
    "data after Connection: close": head(b"Connection: close", b"Content-Length: 0") + b"GET /",
}


@pytest.mark.parametrize("data", SMUGGLING.values(), ids=SMUGGLING)
def test_what_two_servers_might_read_differently_is_refused(data: bytes) -> None:
    assert refusal(data) in (400, 405, 505)


@pytest.mark.parametrize("name", SMUGGLING)
def test_it_is_refused_too_when_it_comes_byte_by_byte(name: str) -> None:
    data = SMUGGLING[name]
    assert refusal(*(data[i : i + 1] for i in range(len(data)))) in (400, 405, 505)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head(first=b"PUT /v1/files HTTP/1.1"), 405),
        (head(first=b"DELETE /v1/files HTTP/1.1"), 405),
        (head(first=b"POST / HTTP/2.0"), 505),
        (head(b"Expect: 200-ok"), 417),
        (head(b"Content-Encoding: gzip"), 415),
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
    assert request.lines == [b"Authorization: Bearer k\r\n", b"traceparent: 00-1\r\n"]


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
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=400, deadline=None)
def test_no_input_does_anything_but_parse_or_be_refused(reads: list[bytes]) -> None:
    requests: list[Request] = []
    parser = RequestParser(Limits(), requests.append, lambda: None)
    with suppress(RequestError):
        for read in reads:
            parser.feed(read)
    assert all(request.path.startswith(("/", "*")) for request in requests)
