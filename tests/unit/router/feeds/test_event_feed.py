"""KV events from the engine's own publisher, over real sockets."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import zmq

from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir.wire.kv_events import (
    REPLAY_END,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    encode_batch,
)
from kvasir_engine.kv.event_publisher import KVEventPublisher
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.feeds import event_replay as replay
from kvasir_router.feeds.event_feed import EventFeed
from kvasir_router.feeds.event_sockets import MAX_MESSAGE_BYTES, EventSockets
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.tasks import SupervisedTasks

ANY = "tcp://127.0.0.1:*"


def block(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stored(*numbers: int) -> BlockStored:
    return BlockStored([block(n) for n in numbers], None, list(range(16 * len(numbers))), 16)


def removed(*numbers: int) -> BlockRemoved:
    return BlockRemoved([block(n) for n in numbers])


def held(*numbers: int) -> set[bytes]:
    return {block(n) for n in numbers}


@pytest.fixture
def start_publisher() -> Iterator[Callable[..., KVEventPublisher]]:
    started: list[KVEventPublisher] = []

    def start(
        endpoint: str = ANY, replay: str = ANY, fleet_secret: Any = "", **options: object
    ) -> KVEventPublisher:
        given = isinstance(fleet_secret, FleetSecretFile)
        options["fleet_secret"] = fleet_secret if given else FleetSecretFile(fleet_secret)
        started.append(KVEventPublisher(endpoint, replay, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for publisher in started:
        publisher.close()


@pytest.fixture
async def subscribe(blocks, make_replica) -> AsyncIterator[Callable[..., EventFeed]]:
    feeds: list[EventFeed] = []
    plumbings: list[EventSockets] = []

    def start(
        address: str,
        replay: str | None,
        secret: str | FleetSecrets | None = None,
        **spec: object,
    ) -> EventFeed:
        secrets = secret if isinstance(secret, FleetSecrets) else FleetSecrets(secret)
        plumbings.append(EventSockets(secrets, SupervisedTasks()))
        replica = make_replica(**spec)
        feeds.append(EventFeed(replica, address, replay, blocks, plumbings[-1]))
        return feeds[-1]

    yield start
    for feed in feeds:
        feed.close()
    for plumbing in plumbings:
        plumbing.close()


def counts(feed: EventFeed) -> dict[str, int]:
    return feed._replica.feeds


async def connected(feed: EventFeed, eventually) -> None:
    """The first replay, which comes with the connection, is over."""
    await eventually(lambda: counts(feed)["kv_replays"] >= 1 and feed._replay is None)


class Wire:
    """A publisher that sends what a test says, and replays what it is given."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.router = self.context.socket(zmq.ROUTER)
        self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.router.bind_to_random_port("tcp://127.0.0.1")
        self.address = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_address = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.questions: list[int] = []
        self.answer: Callable[[int], list[list[bytes]]] = lambda start: [[REPLAY_END, b""]]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def send(self, *frames: bytes) -> None:
        self.pub.send_multipart(frames)

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self.context.destroy(linger=0)

    _closing = False

    def _run(self) -> None:
        while not self._closing:
            if self.router.poll(20):
                identity, _, start = self.router.recv_multipart()
                self.questions.append(int.from_bytes(start, "big"))
                for frames in self.answer(self.questions[-1]):
                    self.router.send_multipart([identity, b"", *frames])


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


def batch(number: int, *blocks_: int, ts: float | None = None) -> tuple[bytes, bytes]:
    """Number and payload."""
    event = BlockStored([block(n) for n in blocks_], None, [], 16)
    payload = encode_batch(EventBatch(float(number) if ts is None else ts, [event]))
    return number.to_bytes(8, "big"), payload


async def test_events_are_followed_in_order(start_publisher, subscribe, blocks, eventually):
    publisher = start_publisher()
    feed = subscribe(publisher.endpoint, publisher.replay_endpoint)
    await connected(feed, eventually)
    for n in range(50):
        publisher.publish([stored(n)])
    publisher.publish([removed(*range(40))])
    await eventually(lambda: blocks.held == held(*range(40, 50)))
    publisher.publish([AllBlocksCleared(), stored(7)])
    await eventually(lambda: blocks.held == held(7))
    assert counts(feed)["kv_batches"] == 52


async def test_a_late_reader_learns_what_was_before_it_though_nothing_happens(
    start_publisher, subscribe, blocks, eventually
):
    publisher = start_publisher()
    publisher.publish([stored(1, 2, 3)])
    publisher.publish([removed(2)])
    subscribe(publisher.endpoint, publisher.replay_endpoint)
    await eventually(lambda: blocks.held == held(1, 3))


async def test_only_a_holder_of_the_secret_reads(start_publisher, subscribe, blocks, eventually):
    publisher = start_publisher(fleet_secret="s3cret")
    publisher.publish([stored(1)])
    stranger = subscribe(publisher.endpoint, publisher.replay_endpoint, "another")
    await asyncio.sleep(0.3)
    assert not counts(stranger)["kv_replays"]
    assert blocks.held == set()
    subscribe(publisher.endpoint, publisher.replay_endpoint, "s3cret")
    await eventually(lambda: blocks.held == held(1))


async def test_each_line_is_tried(start_publisher, subscribe, blocks, eventually):
    publisher = start_publisher(fleet_secret="new")
    publisher.publish([stored(1)])
    subscribe(publisher.endpoint, publisher.replay_endpoint, "old\nnew")
    await eventually(lambda: blocks.held == held(1))


async def test_nothing_is_forgotten_while_the_secret_is_replaced(
    start_publisher, subscribe, blocks, eventually, tmp_path
):
    engine_file, router_file = tmp_path / "engine", tmp_path / "router"
    for each in (engine_file, router_file):
        each.write_text("old")
    source, secrets = FleetSecretFile(path=engine_file), FleetSecrets(path=router_file)
    source.follow()
    await secrets.load()
    publisher = start_publisher(fleet_secret=source)
    feed, published = subscribe(publisher.endpoint, publisher.replay_endpoint, secrets), []
    for text in ("old\nnew", "new\nold", "new"):
        for each in (engine_file, router_file):
            each.write_text(text)
            await secrets.load()
            await eventually(lambda: source.now.sent == engine_file.read_text()[:3])
            published.append(len(published))
            publisher.publish([stored(published[-1])])
            await eventually(lambda: blocks.held == held(*published))
    source.stop()
    assert not counts(feed)["kv_cleared"]
    assert not counts(feed)["kv_replays_failed"]


async def test_a_replay_goes_on_with_the_engines_new_key(
    start_publisher, subscribe, blocks, eventually, tmp_path, monkeypatch
):
    """The key changes when the question for a replay is on its way."""
    (tmp_path / "secret").write_text("old\nnew")
    source = FleetSecretFile(path=tmp_path / "secret")
    publisher = start_publisher(fleet_secret=source)
    publisher.publish([stored(1)])
    publisher.publish([stored(2)])
    monkeypatch.setattr(replay, "IDLE_SECONDS", 30.0)
    answer, asked = publisher._answer_replay, threading.Event()

    def lose() -> None:
        publisher._router.recv_multipart()
        publisher._answer_replay = answer
        (tmp_path / "secret").write_text("new\nold")
        source.look()
        asked.set()

    publisher._answer_replay = lose
    feed = subscribe(publisher.endpoint, publisher.replay_endpoint, "old\nnew")
    await eventually(asked.is_set)
    publisher.publish([stored(3)])  # wakes it up
    await eventually(lambda: blocks.held == held(1, 2, 3))
    assert not counts(feed)["kv_replays_failed"]


async def test_engines_of_others_know_no_secret(start_publisher, subscribe, blocks, eventually):
    publisher = start_publisher()
    publisher.publish([stored(1)])
    kind = EngineKind.VLLM
    subscribe(publisher.endpoint, publisher.replay_endpoint, "s3cret", engine=kind)
    await eventually(lambda: blocks.held == held(1))


async def test_a_restarted_engine_is_begun_anew(start_publisher, subscribe, blocks, eventually):
    first = start_publisher()
    feed = subscribe(first.endpoint, first.replay_endpoint)
    await connected(feed, eventually)
    first.publish([stored(1)])
    first.publish([stored(2)])
    await eventually(lambda: blocks.held == held(1, 2))
    first.close()
    second = start_publisher(first.endpoint, first.replay_endpoint)
    second.publish([stored(10)])
    second.publish([stored(11)])
    second.publish([stored(12)])
    await eventually(lambda: blocks.held == held(10, 11, 12))


async def test_an_engine_known_to_be_gone_has_nothing(
    start_publisher, subscribe, blocks, eventually
):
    first = start_publisher()
    feed = subscribe(first.endpoint, first.replay_endpoint)
    await connected(feed, eventually)
    first.publish([stored(1)])
    await eventually(lambda: blocks.held == held(1))
    first.close()
    feed.emptied()
    assert blocks.held == set()
    second = start_publisher(first.endpoint, first.replay_endpoint)
    second.publish([stored(2)])
    await eventually(lambda: blocks.held == held(2))


@pytest.mark.slow
async def test_a_reader_that_lags_is_sent_again_what_it_lost(
    start_publisher, subscribe, blocks, eventually
):
    publisher = start_publisher()
    feed = subscribe(publisher.endpoint, publisher.replay_endpoint)
    await connected(feed, eventually)
    publisher.publish([stored(0)])
    await eventually(lambda: blocks.held == held(0))
    feed._read(False)  # as a router that is stopped for a while
    for n in range(1, 8000):
        publisher.publish([stored(n), removed(n - 1)])
        if n % 1000 == 0:
            await asyncio.sleep(0.01)  # the publisher's own queue is not what is tested
    await asyncio.sleep(0.2)
    feed._read(True)
    publisher.publish([stored(8000), removed(7999)])
    await eventually(lambda: 8000 in {int.from_bytes(hash_, "big") for hash_ in blocks.held})
    await eventually(lambda: feed._replay is None)
    assert blocks.held == held(8000)


async def test_a_gap_is_asked_for(wire, subscribe, blocks, eventually):
    feed = subscribe(wire.address, wire.replay_address)
    await connected(feed, eventually)
    wire.send(b"kv@host@m", *batch(0, 0))
    await eventually(lambda: blocks.held == held(0))
    # Older engines send no topic in a replay
    wire.answer = lambda start: [*(list(batch(n, n)) for n in range(start, 3)), [REPLAY_END, b""]]
    wire.send(b"kv@host@m", *batch(3, 3))
    await eventually(lambda: blocks.held == held(0, 1, 2, 3))
    assert wire.questions == [0, 0]
    wire.send(b"kv@host@m", *batch(4, 4))
    await eventually(lambda: blocks.held == held(0, 1, 2, 3, 4))
    assert blocks.clears == 0


async def test_a_replay_that_does_not_end_is_given_up(
    wire, subscribe, blocks, eventually, monkeypatch
):
    monkeypatch.setattr(replay, "IDLE_SECONDS", 0.2)
    wire.answer = lambda start: [[b"", *batch(5, 5)]]
    feed = subscribe(wire.address, wire.replay_address)
    await eventually(lambda: counts(feed)["kv_replays_failed"] == 1)
    assert blocks.held == set(), "half a replay is not believed"
    wire.send(b"", *batch(9, 9))
    await eventually(lambda: blocks.held == held(9))
    wire.send(b"", *batch(11, 11))
    await eventually(lambda: blocks.held == held(11))
    assert len(wire.questions) == 1, "the next question has time"


async def test_a_long_replay_that_goes_on_is_heard_to_its_end(
    wire, subscribe, blocks, eventually, monkeypatch
):
    monkeypatch.setattr(replay, "IDLE_SECONDS", 2.0)

    def answer(start: int) -> Iterator[list[bytes]]:
        for n in range(6):
            time.sleep(0.4)
            yield list(batch(n, n))
        yield [REPLAY_END, b""]

    wire.answer = answer  # type: ignore[assignment]
    feed = subscribe(wire.address, wire.replay_address)
    await eventually(lambda: blocks.held == held(*range(6)))
    await connected(feed, eventually)
    assert not counts(feed)["kv_replays_failed"]


async def test_garbage_is_survived_and_what_it_may_have_said_forgotten(
    wire, subscribe, blocks, eventually
):
    feed = subscribe(wire.address, wire.replay_address)
    await connected(feed, eventually)
    wire.send(b"", *batch(0, 0))
    await eventually(lambda: blocks.held == held(0))
    wire.send(b"only")
    wire.send(b"", b"short", b"x")
    wire.send(b"", REPLAY_END, b"")
    wire.send(b"", (1).to_bytes(8, "big"), b"\xc1\xff")
    await eventually(lambda: counts(feed)["kv_bad_messages"] >= 3)
    wire.answer = lambda start: [
        [(1).to_bytes(8, "big"), b"\xc1\xff"],
        list(batch(2, 2)),
        [REPLAY_END, b""],
    ]
    wire.send(b"", *batch(2, 2))
    await eventually(lambda: blocks.held == held(2))


async def test_a_publisher_of_giant_messages_is_cut_off(
    wire, subscribe, blocks, eventually, monkeypatch
):
    feed = subscribe(wire.address, wire.replay_address)
    await connected(feed, eventually)
    wire.send(b"", (0).to_bytes(8, "big"), b"x" * (MAX_MESSAGE_BYTES + 1))
    # It comes back, and is asked what it has
    await eventually(lambda: len(wire.questions) == 2)
    assert not counts(feed)["kv_bad_messages"]


async def test_a_flood_leaves_the_loop_to_others(start_publisher, subscribe, blocks, eventually):
    publisher = start_publisher()
    feed = subscribe(publisher.endpoint, publisher.replay_endpoint)
    await connected(feed, eventually)
    for n in range(3000):
        publisher.publish([stored(*range(n * 8, n * 8 + 8))])
    turns = 0
    while blocks.calls < 3000:
        before = blocks.calls
        await asyncio.sleep(0)
        assert blocks.calls - before < 500
        turns += 1
    assert turns > 6


async def test_closing_ends_everything_in_the_midst(wire, subscribe, eventually):
    wire.answer = lambda start: []
    feed = subscribe(wire.address, wire.replay_address)
    await eventually(lambda: len(wire.questions) == 1)
    feed.close()
    await eventually(lambda: not feed._tasks)
