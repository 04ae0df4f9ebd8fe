"""Requests that two servers might read differently, so that a second one hides in the first.

Each is refused with its status, the connection is closed, and nothing of it reaches a replica.
"""

import asyncio

import pytest

from kvasir_router.wire.http_request import BodyBudget, Limits, RequestError
from kvasir_router.wire.request_parser import RequestParser


def head(*lines: bytes, first: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join((first, b"Host: a", *lines, b"", b""))


HIDDEN = b'POST /score?hidden HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{"model": "m"}'
CHUNKED = b"Transfer-Encoding: chunked"

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
    "underscored length": head(b"Content_Length: 5", b"Content-Length: 0"),
    "underscored transfer encoding": head(b"transfer_encoding: chunked"),
    "chunked with a comma": head(b"Transfer-Encoding: chunked,"),
    "chunked with a parameter": head(b"Transfer-Encoding: chunked;q=1"),
    "chunked and something after a line": head(CHUNKED, b"Transfer-Encoding: x"),
    "chunk size with a space before": head(CHUNKED) + b" 1\r\na\r\n0\r\n\r\n",
    "chunk size with a space after": head(CHUNKED) + b"1 \r\na\r\n0\r\n\r\n",
    "chunk size missing": head(CHUNKED) + b"\r\na\r\n0\r\n\r\n",
    "bare CR after a chunk size": head(CHUNKED) + b"1\ra\r\n0\r\n\r\n",
    "bare LF in a chunk extension": head(CHUNKED) + b"1;a\n\r\na\r\n0\r\n\r\n",
    "bare CR in a chunk extension": head(CHUNKED) + b"1;a\rb\r\na\r\n0\r\n\r\n",
    "trailer of another kind": head(CHUNKED) + b"0\r\nX: a\r\n\r\n",
    "fragment in the target": head(first=b"POST /v1/x#y HTTP/1.1"),
    "no version": b"POST /v1/completions\r\n\r\n",
    "lower case version": head(first=b"POST / http/1.1"),
    "tab in the request line": head(first=b"POST\t/v1/x HTTP/1.1"),
    "words after the version": head(first=b"POST /v1/x HTTP/1.1 x"),
    "DEL in a value": head(b"X: a\x7f"),
    "non-ASCII name": head(b"X\xe9: a"),
    "space in a name": head(b"X Y: a"),
    "line of a space": head(b" "),
    "dot segment at the end": head(first=b"POST /v1/.. HTTP/1.1"),
    "absolute form with the hidden one": head(first=b"GET http://a/v1/models HTTP/1.1"),
    "WebSocket": head(b"Connection: Upgrade", b"Upgrade: websocket", first=b"GET / HTTP/1.1"),
}
OTHER_STATUS = {"authority form": 405, "no version": 505}


def expected(name: str) -> int:
    return OTHER_STATUS.get(name, 400)


@pytest.mark.parametrize("name", SMUGGLING)
def test_it_is_refused_when_it_comes_byte_by_byte(name: str) -> None:
    parser = RequestParser(Limits(), BodyBudget(2**30), lambda request: None, lambda: None)
    data = SMUGGLING[name]

    def feed_bytes() -> None:
        for i in range(len(data)):
            parser.feed(data[i : i + 1])

    with pytest.raises(RequestError) as refused:
        feed_bytes()
    assert refused.value.status == expected(name)


async def test_each_is_refused_and_nothing_reaches_the_replica(
    start_replica, start_router, model_entry
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    answers = await asyncio.gather(*(router.exchange(data + HIDDEN) for data in SMUGGLING.values()))
    got = {
        name: [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        for name, answer in zip(SMUGGLING, answers, strict=True)
    }
    assert got == {name: [expected(name)] for name in SMUGGLING}
    assert replica.requests == []
    assert all(b"Connection: close\r\n" in answer for answer in answers)
    assert b"200 OK" in await router.exchange(
        HIDDEN.replace(b"\r\n\r", b"\r\nConnection: close\r\n\r", 1)
    )
    assert [request.target for request in replica.requests] == ["/score?hidden"]


async def test_a_request_within_a_body_stays_a_body(
    start_replica, start_router, model_entry, post
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    body = b'{"model": "m", "prompt": "%b"}' % HIDDEN.replace(b'"', b"'").replace(
        b"\r\n", b"\\r\\n"
    )
    await router.exchange(post(body, b"Connection: close"))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:20], body[20:]))
    await router.exchange(head(CHUNKED, b"Connection: close") + chunks + b"0\r\n\r\n")
    assert [request.body for request in replica.requests] == [body, body]
    assert [request.header("transfer-encoding") for request in replica.requests] == [None, None]
