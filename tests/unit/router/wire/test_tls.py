"""TLS to clients and to replicas, with certificates made for the test."""

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import structlog
from support.certificates import self_signed

from kvasir.certificates import TlsError
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir_router.fleet.replica import LoadStreamState
from kvasir_router.options.router_settings import Tls
from kvasir_router.wire.http_request import Limits
from kvasir_router.wire.tls import ServerTls, client_context


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Two self-signed pairs for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates")
    return {name: self_signed(folder, name) for name in ("old", "new")}


@pytest.fixture
def pair(certificates, tmp_path: Path) -> tuple[Path, Path]:
    """The old pair in files that a test may replace."""
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(certificates["old"][0], cert)
    shutil.copy(certificates["old"][1], key)
    return cert, key


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def trusting(certificates: Any, name: str) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=certificates[name][0])
    return httpx.AsyncClient(verify=context, timeout=60)


class TestClients:
    @pytest.fixture
    async def router(self, start_replica, start_router, model_entry, pair):
        async def events(exchange: Any) -> None:
            if not json.loads(exchange.request.body).get("stream"):
                await exchange.json(200, {"size": len(exchange.request.body)})
                return
            await exchange.start_events()
            for _ in range(3):
                await exchange.chunk(b"data: 1\n\n")
            await exchange.end()

        replica = await start_replica(script=events)
        return await start_router(
            [model_entry("m", replica)], tls=Tls(*pair), limits=Limits(body_bytes=2_000_000)
        )

    async def test_answers_streams_and_refusals(self, router, certificates) -> None:
        url = f"https://127.0.0.1:{router.port}"
        async with trusting(certificates, "old") as client:
            large = {"model": "m", "prompt": "x" * 1_000_000}
            assert (await client.post(f"{url}/score", json=large)).json()["size"] > 1_000_000
            streamed = await client.post(f"{url}/score", json={"model": "m", "stream": True})
            assert streamed.text == "data: 1\n\n" * 3
            refused = await client.post(f"{url}/score", content=b"x" * 2_000_001)
            assert refused.status_code == 413
            assert (await client.head(f"{url}/health")).status_code == 200

    async def test_a_client_without_tls_gets_nothing(self, router) -> None:
        assert await router.exchange(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n") == b""

    async def test_a_close_is_said(self, router, certificates) -> None:
        context = ssl.create_default_context(cafile=certificates["old"][0])
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port, ssl=context)
        writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 200")
        writer.close()


class TestReload:
    async def test_a_new_pair_is_shown_to_new_connections(
        self, start_router, pair, certificates, eventually, monkeypatch
    ) -> None:
        tls = ServerTls(*pair)
        heard: list[bool] = []
        following = asyncio.create_task(tls.follow(heard.append))
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=tls.context)
        port = server.sockets[0].getsockname()[1]
        assert await shown(port) == der(certificates["old"][0])
        for new, path in zip(certificates["new"], pair, strict=True):
            shutil.copy(new, path)
        await eventually(lambda: True in heard)
        assert await shown(port) == der(certificates["new"][0])
        following.cancel()
        server.close()

    async def test_open_streams_go_on_over_a_reload(
        self, start_router, model_entry, stream_until, pair, certificates, eventually
    ) -> None:
        replica, go_on = await stream_until()
        router = await start_router([model_entry("m", replica)], tls=Tls(*pair))
        stale, url = router.server.metrics.stale, f"https://127.0.0.1:{router.port}/score"
        body = {"model": "m", "stream": True}
        async with (
            trusting(certificates, "old") as client,
            client.stream("POST", url, json=body) as stream,
        ):
            parts = stream.aiter_bytes()
            assert await anext(parts) == b"data: 1\n\n"
            pair[1].write_text("no key")
            await eventually(lambda: stale.get("certificate") is True)
            assert await shown(router.port) == der(certificates["old"][0])
            assert await router.metric("stale_files", file="certificate") == 1
            for new, path in zip(certificates["new"], pair, strict=True):
                shutil.copy(new, path)
            await eventually(lambda: stale["certificate"] is False)
            assert await shown(router.port) == der(certificates["new"][0])
            go_on.set()
            assert b"".join([part async for part in parts]) == b"data: 2\n\n"

    @pytest.mark.parametrize("change", ["other key", "nonsense", "gone"])
    async def test_a_bad_pair_is_reported_and_the_last_good_one_stays(
        self, pair, certificates, eventually, change: str
    ) -> None:
        tls = ServerTls(*pair)
        heard: list[bool] = []
        following = asyncio.create_task(tls.follow(heard.append))
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=tls.context)
        cert, key = pair
        if change == "other key":
            shutil.copy(certificates["new"][1], key)
        elif change == "nonsense":
            cert.write_text("no certificate")
        else:
            key.unlink()
        await eventually(lambda: False in heard)
        port = server.sockets[0].getsockname()[1]
        assert await shown(port) == der(certificates["old"][0])
        following.cancel()
        server.close()


def der(cert: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(cert.read_text())


async def shown(port: int) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert certificate is not None
    return bytes(certificate)


class TestReplicas:
    async def start(self, start_replica, start_router, model_entry, certificates, ca: str) -> Any:
        replica = await start_replica(tls=server_context(*certificates["old"]))
        tls = Tls(replica_ca=certificates[ca][0])
        return await start_router([model_entry("m", replica)], tls=tls, wait=False), replica

    async def test_a_known_one_is_used(
        self, start_replica, start_router, model_entry, certificates, client, eventually
    ) -> None:
        router, replica = await self.start(
            start_replica, start_router, model_entry, certificates, "old"
        )
        await eventually(lambda: router.server.fleet.ready)
        for _ in range(3):
            response = await client.post(f"{router.url}/score", json={"model": "m"})
            assert response.json() == {"target": "/score"}
        assert len(replica.requests) == 3

    async def test_an_unknown_one_gets_nothing(
        self, start_replica, start_router, model_entry, certificates, client, eventually
    ) -> None:
        router, replica = await self.start(
            start_replica, start_router, model_entry, certificates, "new"
        )
        await asyncio.sleep(0.2)
        assert not router.server.fleet.ready
        assert replica.requests + replica.probes == []


class TestLoadStreams:
    """gRPC to replicas with an https URL: the same authorities, no plaintext."""

    @pytest.fixture
    async def start_engine(self, start_replica, start_router, model_entry, certificates):
        servers = []

        async def start(ca: str) -> Any:
            cert, key = (path.read_bytes() for path in certificates["old"])
            server = grpc.aio.server()
            engine_pb2_grpc.add_EngineServicer_to_server(Loads(), server)
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)]))
            await server.start()
            servers.append(server)
            entry = model_entry("m", await start_replica(tls=server_context(*certificates["old"])))
            entry["replicas"][0]["grpc_port"] = port
            tls = Tls(replica_ca=certificates[ca][0])
            router = await start_router([entry], tls=tls, wait=False)
            return router.replica("m", "r0")

        yield start
        for server in servers:
            await server.stop(None)

    async def test_a_known_engine_is_heard(self, start_engine, eventually) -> None:
        replica = await start_engine("old")
        await eventually(lambda: replica.load_stream_state is LoadStreamState.READY)
        assert replica.load.report is not None
        assert replica.load.report.running == 7

    async def test_an_unknown_one_is_not(self, start_engine, eventually) -> None:
        with structlog.testing.capture_logs() as logs:
            replica = await start_engine("new")
            await eventually(lambda: any(log["event"] == "no load stream" for log in logs))
        assert replica.load_stream_state is LoadStreamState.NONE


class Loads(engine_pb2_grpc.EngineServicer):
    """An engine that tells its load once."""

    async def WatchLoad(self, message: pb.WatchLoadRequest, context: Any) -> None:
        await context.write(pb.Load(running=7, ready=True))
        await asyncio.sleep(60)


@pytest.mark.parametrize("missing", [0, 1])
def test_files_that_cannot_be_used(pair, missing: int) -> None:
    pair[missing].unlink()
    with pytest.raises(TlsError) as refusal:
        ServerTls(*pair)
    assert str(refusal.value) == f"cannot read {pair[missing]}: No such file or directory"


def test_files_that_are_none_of_a_certificate(pair, tmp_path: Path) -> None:
    cert, key = pair
    text = tmp_path / "text.pem"
    text.write_text("hello")
    others = tmp_path / "other.key"
    command = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout"]
    subprocess.run([*command, "-out", str(others)], check=True, capture_output=True)
    for files, reason in (
        ((text, key), "no PEM file"),
        ((cert, text), "no PEM file"),
        ((cert, others), "belongs to another certificate"),
    ):
        with pytest.raises(TlsError, match=reason) as refusal:
            ServerTls(*files)
        assert "_ssl.c" not in str(refusal.value)


def test_an_encrypted_key_is_refused_and_not_asked_about(pair, tmp_path: Path) -> None:
    cert, key = pair
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "ec", "-in", str(key), "-out", str(encrypted), "-aes128"]
    subprocess.run([*command, "-passout", "pass:secret"], check=True, capture_output=True)
    with pytest.raises(TlsError, match="encrypted"):
        ServerTls(cert, encrypted)


def test_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"authorities from .*none.pem: No such file"):
        client_context(tmp_path / "none.pem")
    (tmp_path / "text.pem").write_text("hello")
    with pytest.raises(TlsError, match="it holds no certificate in PEM"):
        client_context(tmp_path / "text.pem")
