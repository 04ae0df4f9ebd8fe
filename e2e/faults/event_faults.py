"""KV-event publishers that begin anew, lie, or lag."""

import asyncio
import json
import threading
import time
from collections import deque

import zmq
from faults.load import Answer, ask
from faults.processes import MODEL, SECRET
from faults.rig import Rig, Row

from kvasir.wire.fleet_secret import secure_client, secure_server

_PARALLEL = 16


def prompt(first: int, number: int) -> bytes:
    """Another one for each pair of numbers, of some 400 tokens."""
    text = f"{first} " + " ".join(str((number * 7919 + at * 104729) % 9973) for at in range(150))
    body = {"model": MODEL, "prompt": text, "max_tokens": 2, "ignore_eos": True}
    return json.dumps(body).encode()


async def ask_all(rig: Rig, bodies: list[bytes]) -> list[Answer]:
    """A few at a time."""
    room = asyncio.Semaphore(_PARALLEL)

    async def one(body: bytes) -> Answer:
        async with room:
            return await ask(rig.router.port, body)

    return list(await asyncio.gather(*(one(body) for body in bodies)))


async def _hit_tokens(rig: Rig) -> list[float]:
    """Predicted and confirmed."""
    kinds = ("predicted", "confirmed")
    return [await rig.router.metric(f"{kind}_hit_tokens_total") for kind in kinds]


async def _tokens(rig: Rig) -> list[float]:
    """Return the tokens of prompts, and those of them that were in a cache."""
    kinds = ("prompt", "cached")
    return [await rig.router.metric("tokens_total", model=MODEL, kind=kind) for kind in kinds]


async def restarted(rig: Rig) -> Row:
    """The publisher begins anew with its engine: what it had is forgotten, what it gets known."""
    row, engine = Row("KV-event publisher restarted"), rig.engines[0]
    bodies = [prompt(-1, number) for number in range(40)]
    answers = await ask_all(rig, bodies * 2)
    await engine.kill()
    await rig.router.until({engine.name: "down"})
    await engine.start()
    await rig.all_ready()
    answers += await ask_all(rig, bodies)
    await asyncio.sleep(4)  # beyond what the router believes without events
    before = await _hit_tokens(rig)
    answers += await ask_all(rig, bodies)
    after = await _hit_tokens(rig)
    predicted, confirmed = (now - then for now, then in zip(after, before, strict=True))
    row.count(answers)
    row.expect(predicted > 0, "no hit was predicted")
    row.expect(confirmed >= 0.5 * predicted, "predicted hits were none")
    row.note = f"{confirmed / max(predicted, 1):.0%} of the predicted tokens were hits"
    return row


async def lying(rig: Rig) -> Row:
    """A replica whose events are another's: the hit check turns them off."""
    row = Row("KV-event publisher lying")
    honest, liar = rig.engines[0].entry, {**rig.engines[1].entry, **rig.engines[0].events}
    rig.router.configure([{"name": MODEL, "replicas": [honest, liar]}])
    await rig.router.until({liar["id"]: "ready", honest["id"]: "ready"})
    await asyncio.sleep(1)
    begun, answers = time.monotonic(), []
    for batch in range(15):
        bodies = [prompt(batch, number) for number in range(120)]
        answers += await ask_all(rig, bodies)
        await asyncio.sleep(3.5)  # what was just sent is believed to be there without events
        answers += await ask_all(rig, bodies)
        if await rig.router.metric("index_turned_off_total", replica=liar["id"], source="exact"):
            row.detected = time.monotonic() - begun
            break
    row.count(answers)
    row.expect(row.detected is not None, "its events were believed to the end")
    rig.router.configure(rig.models())
    await rig.all_ready()
    return row


async def lagging(rig: Rig) -> Row:
    """Events that come 10 s late."""
    row, lag = Row("KV events lagging 10 s"), Lag(rig.engines[0].events["kv_events"], 10.0)
    late = {**rig.engines[0].entry, "kv_events": lag.address}
    del late["kv_replay"]
    rig.router.configure([{"name": MODEL, "replicas": [late, rig.engines[1].entry]}])
    await rig.router.until({late["id"]: "ready", rig.engines[1].name: "ready"})
    bodies, answers = [prompt(-2, number) for number in range(40)], []
    before = await _tokens(rig)
    for _ in range(8):
        answers += await ask_all(rig, bodies)
        await asyncio.sleep(2.5)
    row.count(answers)
    prompts, cached = (now - then for now, then in zip(await _tokens(rig), before, strict=True))
    row.expect(cached > 0.5 * prompts, "little was found in caches")
    row.expect(lag.passed > 0, "no event was passed on")
    row.note = (
        f"{lag.passed} batches came late; {cached / max(prompts, 1):.0%} of prompts were cached"
    )
    lag.close()
    rig.router.configure(rig.models())
    await rig.all_ready()
    return row


class Lag:
    """Pass a publisher's batches on after `seconds`, in a thread."""

    def __init__(self, address: str, seconds: float) -> None:
        self._context = zmq.Context()
        self._source = self._context.socket(zmq.SUB)
        secure_client(self._source, SECRET)
        self._source.subscribe(b"")
        self._source.connect(address)
        self._sink = self._context.socket(zmq.PUB)
        secure_server(self._sink, SECRET)
        self._sink.bind("tcp://127.0.0.1:*")
        self.address = self._sink.getsockopt_string(zmq.LAST_ENDPOINT)
        self.passed = 0
        self._seconds = seconds
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        held: deque[tuple[float, list[bytes]]] = deque()
        while not self._closing:
            if self._source.poll(20):
                held.append((time.monotonic() + self._seconds, self._source.recv_multipart()))
            while held and held[0][0] <= time.monotonic():
                self._sink.send_multipart(held.popleft()[1])
                self.passed += 1
