"""What is judged when a header is complete: no byte of a body is asked for or kept before."""

import asyncio
import ssl
from typing import Any

import pytest
from support.certificates import self_signed

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.options.router_settings import Timeouts, Tls
from kvasir_router.wire.http_request import Limits

HEAD = b"%b HTTP/1.1\r\nHost: a\r\n%bExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def keyed(one, tmp_path):
    """A router that asks for keys: `all` may use every model, `none` none."""

    async def start(**options: Any) -> Any:
        keys = (
            ApiKey(id="all", hash=hash_key(b"kv-all")),
            ApiKey(id="none", hash=hash_key(b"kv-none"), models=()),
        )
        path = tmp_path / "keys.yaml"
        path.write_bytes(dump_keys(KeyFile(keys=keys)))
        return (await one(keys_file=path, **options))[0]

    return start


def status(answer: bytes) -> int:
    assert answer.count(b"HTTP/1.1 ") == 1, "no 100 Continue before it"
    return int(answer[9:12])


BEARER = b"Authorization: Bearer kv-%b\r\n"
REFUSED = {
    "no key": (b"POST /score", b"", 401),
    "unknown key": (b"POST /score", BEARER % b"x", 401),
    "key without a model": (b"POST /score", BEARER % b"none", 403),
    "no such route": (b"POST /v1/load_lora_adapter", BEARER % b"all", 404),
    "route of another method": (b"POST /v1/models", BEARER % b"all", 405),
    "GET of a route for POST": (b"GET /score", BEARER % b"all", 405),
    "GET with a body": (b"GET /v1/models", BEARER % b"all", 400),
    "HEAD with a body": (b"HEAD /health", BEARER % b"all", 400),
    "OPTIONS with a body": (b"OPTIONS /score", BEARER % b"all", 400),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("sent", [0, 100_000], ids=["waits", "sends"])
async def test_who_may_not_sends_no_body(keyed, name: str, sent: int) -> None:
    router = await keyed()
    start, lines, expected = REFUSED[name]
    answer = await router.exchange(HEAD % (start, lines, 5_000_000) + b"x" * sent)
    assert status(answer) == expected
    assert router.server.gateway.bodies.used == 0


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_unknown_route_needs_no_key_file_to_be_refused_early(one, chunked) -> None:
    router, _ = await one()
    head = HEAD % (b"POST /nowhere", b"", 5_000_000)
    if chunked:
        head = head.replace(b"Content-Length: 5000000", b"Transfer-Encoding: chunked")
    assert status(await router.exchange(head)) == 404


async def test_a_length_beyond_the_limit_or_the_budget_is_not_asked_for(keyed, eventually) -> None:
    router = await keyed(limits=Limits(body_bytes=1_000_000, buffered_bytes=500_000))
    bodies = router.server.gateway.bodies
    lines = BEARER % b"all"
    assert status(await router.exchange(HEAD % (b"POST /score", lines, 1_000_001))) == 413
    _, holder = await router.connect()
    holder.write(HEAD % (b"POST /score", lines, 400_000) + b"x" * 300_000)
    await eventually(lambda: bodies.used == 300_000)
    answer = await router.exchange(HEAD % (b"POST /score", lines, 250_000))
    assert status(answer) == 503
    assert b"\r\nRetry-After: 1\r\n" in answer
    assert bodies.used == 300_000
    holder.close()


class TestHandshakes:
    """TLS connections that are not yet there."""

    @pytest.fixture
    def tls(self, one, tmp_path):
        cert, key = self_signed(tmp_path, "server")

        async def start(**options: Any) -> Any:
            return (await one(tls=Tls(cert, key), **options))[0]

        return start

    async def ask(self, router: Any) -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port, ssl=context)
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.transport.abort()

    async def test_one_that_does_not_end_is_cut_though_bytes_come(self, tls, eventually) -> None:
        router = await tls(timeouts=Timeouts(handshake=2.0))
        gateway = router.server.gateway
        reader, writer = await router.connect()
        await eventually(lambda: gateway.clients.handshakes == 1)
        hello = b"\x16\x03\x01\x10\x00\x01\x00\x0f\xfc\x03\x03" + bytes(4000)
        gone = asyncio.create_task(reader.read())
        for at in range(len(hello)):
            if gone.done():
                break
            writer.write(hello[at : at + 1])
            await asyncio.sleep(0.02)
        await asyncio.wait({gone}, timeout=10)
        assert gone.done()
        gone.exception()
        await eventually(lambda: gateway.clients.handshakes == 0)
        assert (await self.ask(router)).startswith(b"HTTP/1.1 200")
        writer.transport.abort()

    async def test_they_count_as_connections(self, tls, eventually) -> None:
        router = await tls(max_connections=3)
        gateway = router.server.gateway
        half = [await router.connect() for _ in range(3)]
        await eventually(lambda: gateway.clients.handshakes == 3)
        assert await router.metric("client_connections") == 3
        with pytest.raises(OSError):
            await self.ask(router)
        assert await router.metric("connections_refused_total") == 1
        half[0][1].transport.abort()
        await eventually(lambda: gateway.clients.handshakes == 2)
        assert (await self.ask(router)).startswith(b"HTTP/1.1 200")
        for _, writer in half:
            writer.transport.abort()
        await eventually(lambda: gateway.clients.handshakes == 0)
        await eventually(lambda: not gateway.clients.connections)

    async def test_garbage_is_no_defect(self, tls, eventually) -> None:
        router = await tls()
        gateway = router.server.gateway
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x80" * 5000):
            await asyncio.gather(router.exchange(data), return_exceptions=True)
        await eventually(lambda: gateway.clients.handshakes == 0)
        assert not gateway.tasks.failures
        assert (await self.ask(router)).startswith(b"HTTP/1.1 200")
