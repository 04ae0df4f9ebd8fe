"""Feeds of a whole router: what comes in by which way, and when it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from kvasir.wire.block_hash import chain_hashes, prefix_seed, root_hash
from kvasir.wire.kv_events import BlockStored
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir_engine.kv.event_publisher import KVEventPublisher
from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.replica import Health, LoadStreamState
from kvasir_router.index.block_sink import PromptReport


class LoadServer(engine_pb2_grpc.EngineServicer):
    """The load stream of an engine whose HTTP is a FakeReplica."""

    def __init__(self) -> None:
        self.load = pb.Load(running=1, ready=True)
        self.silent = False
        self._server = grpc.aio.server()
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def WatchLoad(self, message: pb.WatchLoadRequest, context: Any) -> None:
        while True:
            if not self.silent:
                await context.write(self.load)
            await asyncio.sleep(0.05)


@pytest.fixture
async def start_load() -> AsyncIterator[Callable[..., Any]]:
    started: list[LoadServer] = []

    async def start() -> LoadServer:
        started.append(LoadServer())
        await started[-1].start()
        return started[-1]

    yield start
    for server in started:
        await server.stop()


@pytest.fixture
async def two(start_replica, start_router, model_entry, start_load, eventually) -> Any:
    """Two replicas that push their load, and the router."""
    replicas = [await start_replica(), await start_replica()]
    loads = [await start_load(), await start_load()]
    entry = model_entry("m", *replicas)
    for fields, load in zip(entry["replicas"], loads, strict=True):
        fields["grpc_port"] = load.port
    router = await start_router([entry])
    first, second = router.replica("m", "r0"), router.replica("m", "r1")
    await eventually(
        lambda: first.load_stream_state is second.load_stream_state is LoadStreamState.READY
    )
    return router, replicas, loads, first


async def test_silence_takes_a_replica_out_until_both_speak(two, client, eventually) -> None:
    router, replicas, loads, first = two
    loads[0].silent = True
    await eventually(lambda: first.health is Health.SUSPECT)
    assert first.feeds["load_stream_silent"] == 1
    replicas[0].requests.clear()
    for _ in range(10):
        response = await client.post(f"{router.url}/score", json={"model": "m"})
        assert response.status_code == 200
    assert replicas[0].requests == [], "its probes succeed, but it does not say that it lives"
    loads[0].silent = False
    await eventually(lambda: first.health is Health.READY)


async def test_all_silent_at_once_is_doubted(two, client, eventually) -> None:
    router, _, loads, first = two
    for load in loads:
        load.silent = True
    await eventually(lambda: first.health is Health.SUSPECT)
    await eventually(lambda: router.replica("m", "r1").health is Health.SUSPECT)
    response = await client.post(f"{router.url}/score", json={"model": "m"})
    assert response.status_code == 200


async def test_a_draining_engine_gets_nothing_new(two, client, eventually) -> None:
    router, replicas, loads, first = two
    loads[0].load.draining = True
    await eventually(lambda: first.health is Health.NOT_READY)
    replicas[0].requests.clear()
    for _ in range(10):
        await client.post(f"{router.url}/score", json={"model": "m"})
    assert replicas[0].requests == []
    loads[0].load.draining = False
    await eventually(lambda: first.health is Health.READY)


async def test_what_was_heard_is_in_the_metrics(two) -> None:
    router, _, loads, first = two
    loads[0].silent = True
    assert await router.metric("replica_reported_running", replica="r0") == 1
    assert await router.metric("replica_load_age_seconds", replica="r0") < 60
    first.feeds["kv_replays"] += 2
    assert await router.metric("replica_feed_events_total", replica="r0", event="kv_replays") == 2


async def test_a_new_policy_learns_what_was_before_it(
    start_replica, start_router, model_entry, eventually
) -> None:
    publisher = KVEventPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    publisher.publish([BlockStored([b"1" * 16, b"2" * 16], None, list(range(32)), 16)])
    entry = model_entry("m", await start_replica())
    entry["replicas"][0] |= {
        "kv_events": publisher.endpoint,
        "kv_replay": publisher.replay_endpoint,
    }
    router = await start_router([entry | {"policy": "least_load"}])
    fleet = router.server.fleet
    model = fleet.models["m"]
    for _ in range(2):
        fleet.set_policy(model, PolicySpec("kv_aware"))
        residency = model.policy.index.residency
        await eventually(lambda held=residency: held.blocks == 2)
    publisher.close()


async def test_foreign_blocks_have_the_seed_of_the_models_own_engines(
    start_replica, start_router, model_entry, write_config, eventually
) -> None:
    """A Kvasir engine's prompt reports then say which text they are of."""
    publisher = KVEventPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    tokens = list(range(16))
    publisher.publish([BlockStored([7], None, tokens, 16)])
    own = await start_replica(card={"root": "org/m", "revision": "1"})
    entry = model_entry("m", await start_replica(), own)
    entry["replicas"][0] |= {
        "engine": "vllm",
        "kv_events": publisher.endpoint,
        "kv_replay": publisher.replay_endpoint,
    }
    both = entry["replicas"]
    router = await start_router([entry | {"replicas": both[:1], "policy": "kv_aware"}])
    index = router.server.fleet.models["m"].policy.index

    def key(**identity: str | None) -> int:
        seed = prefix_seed(fleet_secret=None, **identity)
        return int.from_bytes(chain_hashes(tokens, 16, root=root_hash(seed)), "little")

    alone, beside = key(model=None, revision=None), key(model="org/m", revision="1")
    holders = index.residency.holders
    await eventually(lambda: holders([alone]))
    index.learned(PromptReport([1], [1], b"h" * 16))
    write_config(router.config, [entry | {"policy": "kv_aware"}])
    await eventually(lambda: holders([beside]))
    assert not holders([alone])
    assert index.texts.at(1) == (0, 0), "it was of another seed"
    write_config(router.config, [entry | {"replicas": both[:1], "policy": "kv_aware"}])
    await eventually(lambda: holders([alone]))
    publisher.close()


async def test_a_replica_that_goes_is_not_listened_to(two, write_config, eventually) -> None:
    router, _, _, first = two
    write_config(router.config, [])
    await eventually(lambda: not router.server.fleet.models)
    report = first.load.report
    await asyncio.sleep(0.2)
    assert first.load.report is report
