"""Addresses of clients behind proxies, from a client's side."""

import asyncio
import ssl
from types import SimpleNamespace

import pytest
from support.certificates import self_signed

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.options.proxy_settings import ProxySettings
from kvasir_router.options.router_settings import Timeouts, Tls
from kvasir_router.wire.forwarding.client_address import parse_networks

HERE = parse_networks(["127.0.0.0/8"])
ELSEWHERE = parse_networks(["10.0.0.0/8"])
HEADER = b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n"


@pytest.fixture
async def start(start_replica, start_router, model_entry, monkeypatch):
    """A router whose access log's records are in `written`."""

    async def start(proxies: ProxySettings, **options):
        router = await start_router(
            [model_entry("m", await start_replica())], proxies=proxies, **options
        )
        router.written = []
        log = SimpleNamespace(write=router.written.append)
        gateway = router.server.gateway
        monkeypatch.setattr(gateway, "access_log", log)
        monkeypatch.setattr(gateway._relay_services.accounting, "_access_log", log)
        return router

    return start


def clients(router) -> list[str]:
    return [record.client for record in router.written]


async def test_a_forwarded_address_counts_from_trusted_proxies_alone(start, post) -> None:
    request = post(b'{"model": "m"}', b"X-Forwarded-For: 6.6.6.6, 192.0.2.1", b"Connection: close")
    trusting = await start(ProxySettings(trusted=HERE))
    for router, client in (
        (trusting, "192.0.2.1"),
        (await start(ProxySettings(trusted=ELSEWHERE)), "127.0.0.1"),
        (await start(ProxySettings()), "127.0.0.1"),
    ):
        assert (await router.exchange(request)).startswith(b"HTTP/1.1 200 ")
        await router.exchange(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert clients(router) == [client, "127.0.0.1"]


async def test_each_request_of_a_connection_has_its_own(start, post) -> None:
    router = await start(ProxySettings(trusted=HERE))
    reader, writer = await router.connect()
    for host in (b"192.0.2.1", b"192.0.2.1", b"192.0.2.2", b""):
        line = [b"X-Forwarded-For: " + host] if host else []
        writer.write(post(b'{"model": "m"}', *line))
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
    writer.close()
    assert clients(router) == ["192.0.2.1", "192.0.2.1", "192.0.2.2", "127.0.0.1"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_malformed_one_closes_the_connection_and_is_counted(start, post, method) -> None:
    router = await start(ProxySettings(trusted=HERE))
    bad = b"X-Forwarded-For: unknown"
    get = b"GET /health HTTP/1.1\r\nHost: a\r\n" + bad + b"\r\n\r\n"
    answer = await router.exchange(get if method == "GET" else post(b'{"model": "m"}', bad))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"X-Forwarded-For must be a list of addresses" in answer
    assert await router.metric("proxy_headers_refused_total", reason="forwarded_for") == 1
    assert clients(router) == ["127.0.0.1"]


async def test_who_is_refused_without_a_key_has_an_address(start, post, tmp_path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_bytes(dump_keys(KeyFile(keys=(ApiKey(id="a", hash=hash_key(b"kv-a")),))))
    router = await start(ProxySettings(trusted=HERE), keys_file=path)
    await router.exchange(post(b'{"model": "m"}', b"X-Forwarded-For: 192.0.2.1"))
    assert [(record.status, record.client) for record in router.written] == [(401, "192.0.2.1")]


@pytest.fixture(params=["plain", "tls"])
async def behind_proxy(request, start, tmp_path):
    """Start a router that expects PROXY headers; `ask` sends one and then a request."""
    cert, key = self_signed(tmp_path, "a")
    tls = Tls(cert, key) if request.param == "tls" else Tls()

    async def begin(proxies: ProxySettings | None = None, **options):
        router = await start(proxies or ProxySettings(protocol=HERE), tls=tls, **options)

        async def ask(*parts: bytes) -> bytes:
            reader, writer = await router.connect()
            try:
                for part in parts:
                    writer.write(part)
                    await asyncio.sleep(0)
                if tls.cert:
                    trust = ssl.create_default_context(cafile=cert)
                    trust.check_hostname = False
                    await writer.start_tls(trust)
                writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                return await asyncio.wait_for(reader.read(), 10)
            finally:
                writer.transport.abort()

        router.ask = ask
        return router

    return begin


async def test_the_header_says_the_client_and_the_rest_is_untouched(behind_proxy) -> None:
    router = await behind_proxy()
    for parts in ((HEADER,), (HEADER[:5], HEADER[5:30], HEADER[30:]), (b"PROXY UNKNOWN\r\n",)):
        assert (await router.ask(*parts)).startswith(b"HTTP/1.1 200 ")
    assert clients(router) == ["192.0.2.1", "192.0.2.1", "127.0.0.1"]
    assert router.server.gateway.clients.handshakes == 0


async def test_a_client_of_another_network_sends_none(behind_proxy) -> None:
    router = await behind_proxy(ProxySettings(protocol=ELSEWHERE))
    assert (await router.ask()).startswith(b"HTTP/1.1 200 ")
    assert clients(router) == ["127.0.0.1"]


async def test_a_proxy_without_a_header_is_cut_and_counted(behind_proxy, eventually) -> None:
    router = await behind_proxy(timeouts=Timeouts(handshake=0.1))
    refused = router.server.metrics.proxy_headers_refused
    for part in (b"GET / HTTP/1.1\r\n", b"PROXY TCP4 1.2.3.4\r\n"):
        reader, writer = await router.connect()
        writer.write(part)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()
    _, silent = await router.connect()
    await eventually(lambda: refused["timeout"] == 1)
    silent.transport.abort()
    _, leaving = await router.connect()
    leaving.write(HEADER[:20])
    leaving.close()
    await eventually(lambda: refused["closed"] == 1)
    assert refused == {"signature": 1, "line": 1, "timeout": 1, "closed": 1}
    await eventually(lambda: router.server.gateway.clients.handshakes == 0)


async def test_headers_count_as_connections(behind_proxy, eventually) -> None:
    router = await behind_proxy(max_connections=2)
    clients = router.server.gateway.clients
    held = [await router.connect() for _ in range(2)]
    await eventually(lambda: clients.handshakes == 2)
    held.append(await router.connect())
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await held[-1][0].readexactly(1)
    for _, writer in held:
        writer.transport.abort()
    await eventually(lambda: clients.handshakes == 0)


async def test_a_proxy_may_tell_of_a_trusted_one(start, post) -> None:
    """A load balancer's connection on behalf of an ingress, which adds its own clients."""
    networks = parse_networks(["192.0.2.1"])
    router = await start(ProxySettings(trusted=networks, protocol=HERE))
    request = post(b'{"model": "m"}', b"X-Forwarded-For: 203.0.113.5", b"Connection: close")
    assert (await router.exchange(HEADER + request)).startswith(b"HTTP/1.1 200 ")
    other = HEADER.replace(b"192.0.2.1", b"192.0.2.9")
    assert (await router.exchange(other + request)).startswith(b"HTTP/1.1 200 ")
    assert clients(router) == ["203.0.113.5", "192.0.2.9"]


async def test_an_address_has_a_number_of_connections(start, post, eventually) -> None:
    router = await start(ProxySettings(protocol=HERE, client_connections=2))
    registry = router.server.gateway.clients
    held = []
    for _ in range(2):
        held.append(await router.connect())
        held[-1][1].write(HEADER)
    await eventually(lambda: len(registry.connections) == 2)
    answer = await router.exchange(HEADER + post(b'{"model": "m"}'))
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"may have 2 connections here" in answer
    other = HEADER.replace(b"192.0.2.1", b"192.0.2.9")
    request = post(b'{"model": "m"}', b"Connection: close")
    assert (await router.exchange(other + request)).startswith(b"HTTP/1.1 200 ")
    held[0][1].transport.abort()
    await eventually(lambda: len(registry.connections) == 1)
    assert (await router.exchange(HEADER + request)).startswith(b"HTTP/1.1 200 ")
    held[1][1].transport.abort()
    await eventually(lambda: not registry._of_client)
    assert not registry._counted


async def test_a_proxys_own_connections_are_not_counted(start, post) -> None:
    router = await start(ProxySettings(trusted=HERE, client_connections=1))
    held = [await router.connect() for _ in range(3)]
    request = post(b'{"model": "m"}', b"Connection: close")
    assert (await router.exchange(request)).startswith(b"HTTP/1.1 200 ")
    for _, writer in held:
        writer.transport.abort()
