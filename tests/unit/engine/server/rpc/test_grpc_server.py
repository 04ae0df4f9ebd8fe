from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.server.rpc.grpc_server import MAX_REQUEST_BYTES, SERVICE_NAME

TEXT = {"text": "hello world"}


SECRET = (("x-kvasir-fleet-secret", "right"),)


@pytest.mark.parametrize(
    "metadata", [(), (("x-kvasir-fleet-secret", "wrong"),), (("authorization", "Bearer key"),)]
)
async def test_without_the_fleet_secret_every_call_is_refused(
    start_rig: Any, metadata: tuple[tuple[str, str], ...]
) -> None:
    rig = await start_rig(api_keys=("key",), secret="right")
    stub = rig.stub
    for call in (
        stub.Generate(pb.GenerateRequest(**TEXT), metadata=metadata),
        stub.WatchLoad(pb.WatchLoadRequest(), metadata=metadata),
        stub.WatchPrompts(pb.WatchPromptsRequest(), metadata=metadata),
    ):
        assert (await rig.failure(call)).code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Abort(pb.AbortRequest(), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not (await stub.Abort(pb.AbortRequest(), metadata=SECRET)).found


async def test_a_secret_counts_while_its_line_is_there(start_rig: Any, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("right\nnew")
    rig = await start_rig(secret_file=file)
    old, new = (
        rig.stub.WatchLoad(pb.WatchLoadRequest(), metadata=(("x-kvasir-fleet-secret", secret),))
        for secret in ("right", "new")
    )
    generating, _ = await rig.generate(metadata=SECRET, **TEXT)
    reads = new.__aiter__()
    await anext(reads)
    file.write_text("new")
    assert rig.fleet_secret.look()
    assert (await rig.failure(old)).code() is grpc.StatusCode.UNAUTHENTICATED
    call = rig.stub.WatchPrompts(pb.WatchPromptsRequest(), metadata=SECRET)
    assert (await rig.failure(call)).code() is grpc.StatusCode.UNAUTHENTICATED
    for _ in range(3):
        await anext(reads)
    assert not generating.done()
    new.cancel()
    generating.cancel()


async def test_api_keys_hold_where_there_is_no_fleet_secret(start_rig: Any) -> None:
    rig = await start_rig(api_keys=("key",))
    refused = await rig.failure(rig.stub.Generate(pb.GenerateRequest(**TEXT)))
    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    key = (("authorization", "Bearer key"),)
    assert not (await rig.stub.Abort(pb.AbortRequest(), metadata=key)).found


async def test_health_is_open_and_follows_readiness(start_rig: Any) -> None:
    rig = await start_rig(secret="right")
    statuses = health_pb2.HealthCheckResponse
    for service in ("", SERVICE_NAME):
        answer = await rig.health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == statuses.SERVING
    watch = rig.health.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == statuses.SERVING
    await rig.lifecycle.drain(1)
    async with asyncio.timeout(10):
        assert (await watch.read()).status == statuses.NOT_SERVING
    watch.cancel()


async def test_a_message_over_the_limit_is_refused(start_rig: Any) -> None:
    rig = await start_rig()
    error = await rig.failure(rig.stub.Generate(pb.GenerateRequest(text="x" * MAX_REQUEST_BYTES)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert rig.core.submitted.empty()


async def test_a_port_in_use_is_named(start_rig: Any) -> None:
    taken = (await start_rig()).server.port
    second = type(await start_rig())()
    second.server._address = f"127.0.0.1:{taken}"
    with pytest.raises(OSError, match=str(taken)):
        await second.server.start()
    second.reporter.close()
