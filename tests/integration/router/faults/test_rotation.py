"""The fleet secret and API keys replaced under load: nothing is lost, what is gone is refused."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
import zmq
from faults.load import Load, ask, completion
from faults.processes import MODEL, SimEngine

from kvasir.wire.fleet_secret import secure_client
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir.wire.text_chain import chain_hashes, completion_pieces
from kvasir_router.admission.keys import hash_key
from kvasir_router.fleet.replica import Health
from kvasir_router.options.router_settings import Probing, QueueLimits

pytestmark = pytest.mark.slow

OLD, NEW, KEY = "old-secret", "new-secret", "hash-key:old-secret"
STEPS = ([OLD, NEW, KEY], [NEW, OLD, KEY], [NEW, KEY])
CLIENTS = 6
HEADER = "x-kvasir-fleet-secret"


def write(path: Path, text: str) -> None:
    """As kubelet does it: another file is in its place at once."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Fleet:
    """Two engines and a router, each with a file of its own that holds the fleet secret."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / name for name in ("r0.secret", "r1.secret", "router.secret")]
        for file in self.files:
            write(file, OLD)
        self.engines = [
            SimEngine(f"r{number}", folder, "of no use", ("--fleet-secret-file", str(file)))
            for number, file in enumerate(self.files[:2])
        ]
        self.router: Any = None

    @property
    def replicas(self) -> list[Any]:
        return [replica for _, replica in self.router.server.fleet.replicas()]

    def has(self, prompt: str, number: int) -> bool:
        """True if the router knows by reports and events that the replica has the prompt."""
        body = {"model": MODEL, "prompt": prompt}
        index = self.router.server.fleet.models[MODEL].policy.index
        chain = chain_hashes(completion_pieces(body, prompt))
        found = index.residency.match(index.texts, chain).get(self.replicas[number])
        return found is not None and found.text_blocks > 0

    async def teach(self, prompt: str, number: int, secret: str, eventually: Any) -> None:
        """Have the replica compute the prompt until the router hears of it: what is computed while
        its streams begin anew is not reported."""
        asking = asyncio.create_task(self._compute(prompt, number, secret))
        await eventually(lambda: self.has(prompt, number) or asking.done(), 60)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking

    async def _compute(self, prompt: str, number: int, secret: str) -> None:
        """Ask the replica for the prompt, again and again."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        url = f"{self.engines[number].entry['url']}/v1/completions"
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            while True:
                answer = await client.post(url, json=body, headers={HEADER: secret})
                assert b'"prompt_tokens"' in answer.content
                await asyncio.sleep(3)

    def seen(self, line: str) -> list[int]:
        """How often each engine's log says so."""
        return [engine.log.read_text().count(line) for engine in self.engines]


@pytest.fixture
async def fleet(tmp_path: Path, start_router, eventually) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    for engine in made.engines:
        await engine.start()
    made.router = await start_router(
        [{"name": MODEL, "replicas": [engine.entry for engine in made.engines]}],
        wait=False,
        fleet_secret=OLD,
        fleet_secret_file=made.files[2],
        probing=Probing(),
        waiting=QueueLimits(),
    )
    await eventually(lambda: all(r.health is Health.READY for r in made.replicas), 120)
    await eventually(lambda: all(r.load.report is not None for r in made.replicas), 30)
    yield made
    for engine in made.engines:
        await engine.kill()


async def status(engine: SimEngine, secret: str) -> grpc.StatusCode:
    """Of a load stream that comes with the secret, once it has begun or ended."""
    target = f"127.0.0.1:{engine.entry['grpc_port']}"
    async with grpc.aio.insecure_channel(target) as channel:
        stub = engine_pb2_grpc.EngineStub(channel)
        call = stub.WatchLoad(pb.WatchLoadRequest(), metadata=((HEADER, secret),), timeout=20)
        try:
            async for _ in call:
                return grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.UNKNOWN


class Stranger:
    """Somebody without any of the secrets who tries again and again."""

    def __init__(self, fleet: Fleet) -> None:
        self.got: set[Any] = set()
        self.tries = 0
        self._fleet = fleet
        self._context = zmq.Context()
        self._sockets = [self._subscribe(engine) for engine in fleet.engines]
        self._task = asyncio.create_task(self._run())

    def _subscribe(self, engine: SimEngine) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.SUB)
        secure_client(socket, "stranger")
        socket.subscribe(b"")
        socket.connect(engine.events["kv_events"])
        return socket

    async def _run(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            while True:
                for engine in self._fleet.engines:
                    self.got.add(await status(engine, "stranger"))
                    self.got.add(await status(engine, "hash-key:old-secret"))
                self.got |= {"event" for socket in self._sockets if socket.poll(0)}
                url = f"{self._fleet.router.admin_url}/policy/{MODEL}"
                body = {"policy": "kv_aware"}
                answer = await client.put(url, json=body, headers={HEADER: "stranger"})
                self.got.add(answer.status_code)
                self.tries += 1

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._context.destroy(linger=0)


async def replace(fleet: Fleet, lines: list[str], step: int, eventually: Any) -> None:
    """Write the lines into each file, in any order and whenever; return once each part has them."""
    random.shuffle(fleet.files)
    for file in fleet.files:
        write(file, "\n".join(lines))
        await asyncio.sleep(random.uniform(0, 1.5))
    secrets = fleet.router.server.gateway.fleet_secrets
    await eventually(lambda: [*secrets.now.accepted, KEY] == lines, 30)
    # Of an engine's core and of its API process
    changed = "the fleet secret has changed"
    await eventually(lambda: fleet.seen(changed) == [2 * step] * 2, 30)
    if lines[0] == NEW:
        bound = "KV events are for holders of another fleet secret now"
        await eventually(lambda: fleet.seen(bound) == [1, 1], 30)
        # Each load stream has begun anew with it
        renewed = "load_stream_renewed"
        await eventually(lambda: [r.feeds[renewed] for r in fleet.replicas] == [1, 1], 30)


async def test_the_fleet_secret_is_replaced_without_a_lost_request(
    fleet: Fleet, eventually: Callable[..., Any]
) -> None:
    words = [f"prompt {number} " + "shared words " * 100 for number in range(4)]
    await fleet.teach(words[0], 0, OLD, eventually)
    await fleet.teach(words[1], 1, OLD, eventually)
    feeds = [dict(replica.feeds) for replica in fleet.replicas]
    load, stranger = Load(fleet.router.port, CLIENTS), Stranger(fleet)
    for step, lines in enumerate(STEPS, 1):
        await replace(fleet, list(lines), step, eventually)
        before, tries = len(load.answers), stranger.tries
        await eventually(lambda before=before: len(load.answers) > before + 10 * CLIENTS, 60)
        await eventually(lambda tries=tries: stranger.tries > tries, 60)
    answers = await load.stop()
    await stranger.stop()

    # Nothing was lost, no stream of load ended, nothing that was known of caches was forgotten
    assert [answer.problem for answer in answers if not answer.is_good] == []
    for replica, then in zip(fleet.replicas, feeds, strict=True):
        for name in ("load_stream_ended", "kv_cleared", "kv_replays_failed"):
            assert replica.feeds[name] == then.get(name, 0), name
    assert fleet.has(words[0], 0)
    assert fleet.has(words[1], 1)
    await fleet.teach(words[2], 0, NEW, eventually)

    # What is in no file was refused, and what is in none any more is refused now
    assert stranger.got == {grpc.StatusCode.UNAUTHENTICATED, 401}
    for engine in fleet.engines:
        assert await status(engine, NEW) is grpc.StatusCode.OK
        assert await status(engine, OLD) is grpc.StatusCode.UNAUTHENTICATED
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        url = f"{fleet.router.admin_url}/policy/{MODEL}"
        for secret, code in ((OLD, 401), (NEW, 200)):
            answer = await client.put(url, json={"policy": "kv_aware"}, headers={HEADER: secret})
            assert answer.status_code == code

    # An engine that is started afterwards has the same hashes: a text stands for one block
    await fleet.engines[1].kill()
    await eventually(lambda: fleet.replicas[1].health is Health.DOWN, 30)
    await fleet.engines[1].start()
    await eventually(lambda: fleet.replicas[1].health is Health.READY, 120)
    await fleet.teach(words[3], 0, NEW, eventually)
    await fleet.teach(words[3], 1, NEW, eventually)
    assert fleet.has(words[3], 0)


def key_file(*ids: str) -> str:
    keys = [{"id": each, "hash": hash_key(key_of(each).encode())} for each in ids]
    limited = [{**each, "tenant": "team", "tokens_per_minute": 1e9} for each in keys]
    return yaml.safe_dump({"keys": limited})


def key_of(id_: str) -> str:
    return f"kv-key-of-the-test-{id_}"


def bearer(id_: str) -> str:
    return f"Authorization: Bearer {key_of(id_)}"


async def test_api_keys_are_replaced_without_a_lost_request(
    tmp_path: Path, start_engines: Any, start_router: Any, eventually: Callable[..., Any]
) -> None:
    (engine,) = await start_engines(1)
    file = tmp_path / "keys.yaml"
    write(file, key_file("stays", "0"))
    entry = [{"name": MODEL, "replicas": [engine.entry]}]
    router = await start_router(entry, keys_file=file, fleet_secret="fleet-secret", wait=False)
    (replica,) = [each for _, each in router.server.fleet.replicas()]
    await eventually(lambda: replica.health is Health.READY, 120)
    keyring = router.server.gateway.admission.keyring
    bystander = Load(router.port, 3, lines=(bearer("stays"),))
    answers = []
    for turn in range(4):
        old, new = str(turn), str(turn + 1)
        load = Load(router.port, 2, lines=(bearer(old),))
        await eventually(lambda load=load: len(load.answers) > 4, 60)
        # The new key beside the old one, and then what is no key file at all
        write(file, key_file("stays", old, new))
        await eventually(lambda new=new: keyring.find(f"Bearer {key_of(new)}".encode()), 30)
        write(file, key_file("stays")[:-20] + ": [")
        await eventually(lambda: router.server.gateway.warnings(), 30)
        assert (await ask(router.port, completion("x"), bearer(new))).is_good
        # Whoever has the new key uses it, while an answer to the old one is still on its way
        answers += await load.stop()
        long = asyncio.create_task(
            ask(router.port, completion(turn, tokens=300, stream=True), bearer(old))
        )
        await eventually(lambda before=replica.served: replica.served > before, 30)
        write(file, key_file("stays", new))
        await eventually(lambda old=old: not keyring.find(f"Bearer {key_of(old)}".encode()), 30)
        assert not long.done()
        refused = await ask(router.port, completion("x"), bearer(old))
        assert refused.status == 401
        answers.append(await long)
    answers += await bystander.stop()
    assert [answer.problem for answer in answers if not answer.is_good] == []
    assert (await ask(router.port, completion("x"))).status == 401
