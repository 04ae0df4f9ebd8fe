"""The index process's state in a worker: told whole, kept by news, and told again when some is
missed. Both are parts of this process here, with the real socket between them."""

import asyncio
import random
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from kvasir.wire.block_hash import HASH_BYTES
from kvasir.wire.kv_events import BlockRemoved, BlockStored
from kvasir.wire.text_chain import MAX_BLOCKS
from kvasir_router.discovery.specs import EngineKind, ModelSpec, PolicySpec, ReplicaSpec
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health, LoadStreamState
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.process.components import RouterComponents
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.workers.index_process import IndexProcess
from kvasir_router.workers.replication import publisher as publisher_module
from kvasir_router.workers.replication.messages import (
    Complete,
    Known,
    Learned,
    ReplicaSuspected,
    ResyncRequest,
    Routed,
)
from kvasir_router.workers.replication.replica_state import ReplicaState
from kvasir_router.workers.replication.subscriber import IndexSubscriber
from kvasir_router.workers.shared_memory.load_table import LoadTable
from kvasir_router.workers.shared_memory.shared_limits import SharedLimitTable
from kvasir_router.workers.shared_state import Shared

MODEL = "m"
SNAPSHOT = (
    ModelSpec(
        MODEL,
        aliases=("alias",),
        replicas=(ReplicaSpec("a", "127.0.0.1", 1), ReplicaSpec("b", "127.0.0.1", 2)),
    ),
)
SOURCE = random.Random(1)


class Index(IndexProcess):
    """Without probes and feeds of its own: tests say what is seen."""

    async def begin(self) -> None:
        self.fleet.came = self.fleet.emptied = self._feeds_lose = lambda model, replica: None
        self._feeds_follow_policy = lambda model: None
        self._recall()
        self._tasks.run("links", self._publisher.serve(self._shared.link_sock))
        self._tasks.run("heartbeat", self._publisher.send_heartbeats())
        self.apply(SNAPSHOT)

    async def end(self) -> None:
        await self._tasks.stop()


class Following:
    """A worker's half."""

    def __init__(self, shared: Shared, column: int) -> None:
        self.router = RouterComponents(shared.settings)
        self.messages: list[Any] = []
        self.away = 0
        self.link = IndexSubscriber(
            shared.link_path, self._take_message, self._gone, lambda: None, SupervisedTasks()
        )
        self.follower = ReplicaState(self.router, shared.load, column, self.link.tell)
        self.task = asyncio.create_task(self.link.run())

    def _take_message(self, message: Any) -> None:
        self.messages.append(message)
        self.follower.apply_message(message)

    def _gone(self) -> None:
        self.away += 1

    @property
    def model(self) -> Any:
        return self.router.fleet.models[MODEL]

    def hits(self, chain: Sequence[int]) -> dict[str, tuple[int, str]]:
        if MODEL not in self.router.fleet.models:
            return {}
        found = self.model.policy.index.match(chain)
        return {replica.id: (hit.text_blocks, hit.source.value) for replica, hit in found.items()}

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.router.fleet.apply(())


@pytest.fixture
async def shared(tmp_path):
    link_sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link_sock.bind(str(tmp_path / "index.sock"))
    link_sock.listen(8)
    settings = RouterSettings(config=tmp_path / "fleet.yaml", access_log=False, workers=2)
    with socket.socket() as admin_sock, link_sock:
        yield Shared(settings, tmp_path, LoadTable(6), SharedLimitTable(64), link_sock, admin_sock)


@pytest.fixture
async def start(shared):
    running: list[Any] = []

    async def index() -> Index:
        column = shared.load.allocate_column()
        assert column is not None
        made = Index(shared, column)
        await made.begin()
        running.append(made)
        return made

    async def worker() -> Following:
        column = shared.load.allocate_column()
        assert column is not None
        running.append(Following(shared, column))
        return running[-1]

    class Starts:
        pass

    starts: Any = Starts()
    starts.index, starts.worker = index, worker
    yield starts
    for each in reversed(running):
        await each.end()


def replica(router: RouterComponents, name: str) -> Any:
    return next(each for _, each in router.fleet.replicas() if each.id == name)


def tell_prompt(index: Index, holders: str, blocks: int = 4) -> tuple[list[int], list[bytes]]:
    """A prompt of so many text blocks, two KV blocks each, is in these replicas' caches."""
    chain = [SOURCE.getrandbits(64) for _ in range(blocks)]
    names = [SOURCE.randbytes(HASH_BYTES) for _ in range(2 * blocks)]
    sink = index.fleet.models[MODEL].policy.sink
    for name in holders:
        sink.stored(replica(index, name), BlockStored(names, None, [], 16))
    ends = b"".join(names[1::2])
    sink.learned(PromptReport(chain, [2 * (at + 1) for at in range(blocks)], ends))
    return chain, names


async def test_the_fleet_and_how_it_does(start, until) -> None:
    index, worker = await start.index(), await start.worker()
    await until(lambda: MODEL in worker.router.fleet.models)
    assert worker.router.fleet.find("alias") is not None
    seen = replica(index, "a")
    seen.observed(Health.READY)
    seen.heard(LoadStreamState.READY)
    seen.load.report_every = 0.2
    seen.load.kv_capacity = 1000
    seen.load.reported(LoadReport(3, 1, 500, 0.5, 12.0))
    copy = replica(worker.router, "a")
    await until(lambda: copy.load.report is not None)
    assert copy.health is Health.READY
    assert copy.load_stream_state is LoadStreamState.READY
    assert copy.load.report == seen.load.report
    assert copy.load.kv_capacity == 1000
    assert copy.slot == seen.slot
    index.fleet.set_policy(index.fleet.models[MODEL], PolicySpec("round_robin"))
    await until(lambda: type(worker.model.policy).__name__ == "RoundRobin")
    index.apply((ModelSpec(MODEL, replicas=SNAPSHOT[0].replicas[:1]),))
    await until(lambda: len(worker.model.replicas) == 1)


async def test_a_worker_knows_no_models_before_discovery_does(shared, start, until) -> None:
    column = shared.load.allocate_column()
    assert column is not None
    silent = Index(shared, column)
    silent._tasks.run("links", silent._publisher.serve(shared.link_sock))
    worker = await start.worker()
    await until(lambda: any(isinstance(message, Known) for message in worker.messages))
    assert not worker.router.gateway.knows_models
    silent.fleet.came = silent.fleet.emptied = silent._feeds_lose = lambda model, replica: None
    silent.apply(SNAPSHOT)
    await until(lambda: worker.router.gateway.knows_models)
    await silent.end()
    silent.fleet.apply(())


async def test_exact_hits_by_news_and_by_the_whole_state(start, until) -> None:
    index, early = await start.index(), await start.worker()
    await until(lambda: bool(index._publisher.workers))
    chain, names = tell_prompt(index, "a")
    late = await start.worker()
    for worker in (early, late):
        await until(lambda worker=worker: worker.hits(chain) == {"a": (4, "exact")})
        assert worker.model.policy.index.residency.blocks == 4, "only ends of text blocks"
    sink = index.fleet.models[MODEL].policy.sink
    sink.removed(replica(index, "a"), BlockRemoved(names[-1:]))
    sink.stored(replica(index, "b"), BlockStored(names[:4], None, [], 16))
    expected = {"a": (3, "exact"), "b": (2, "exact")}
    for worker in (early, late):
        await until(lambda worker=worker: worker.hits(chain) == expected)
    sink.cleared(replica(index, "a"))
    for worker in (early, late):
        await until(lambda worker=worker: worker.hits(chain) == {"b": (2, "exact")})


async def test_blocks_that_were_there_before_their_text_was_told(start, until) -> None:
    index, worker = await start.index(), await start.worker()
    await until(lambda: bool(index._publisher.workers))
    chain, _ = tell_prompt(index, "ab")
    await until(lambda: worker.hits(chain) == {"a": (4, "exact"), "b": (4, "exact")})


async def test_what_a_worker_routes_and_learns_is_known_to_the_others(start, until) -> None:
    index, one, other = await start.index(), await start.worker(), await start.worker()
    await until(lambda: len(index._publisher.workers) == 2)
    await until(lambda: MODEL in one.router.fleet.models)
    chain = [SOURCE.getrandbits(64) for _ in range(3)]
    slot = replica(index, "b").slot
    one.link.tell(Routed(one.follower._column, slot, chain, 0))
    await until(lambda: other.hits(chain) == {"b": (3, "approximate")})
    assert one.hits(chain) == {}, "it knows what it did itself"
    late = await start.worker()
    await until(lambda: MODEL in late.router.fleet.models)
    await until(lambda: late.hits(chain) == {"b": (3, "approximate")})
    keys = [SOURCE.randbytes(HASH_BYTES) for _ in chain]
    one.link.tell(Learned(MODEL, PromptReport(chain, [1, 2, 3], b"".join(keys))))
    learned = lambda: [m for m in other.messages if isinstance(m, Learned)]  # noqa: E731
    await until(lambda: bool(learned()))
    assert learned()[0].report.text_hashes == chain
    assert other.model.policy.index.texts.known(chain) == 3


async def test_texts_of_before_outlive_the_first_word_of_what_engines_serve(start, until) -> None:
    """A new index process hears of texts from the workers and what is served from the engines, in
    any order; with the latter it forgets all texts, whose hashes may have had another seed."""
    index, worker, other = await start.index(), await start.worker(), await start.worker()
    await until(lambda: len(index._publisher.workers) == 2)
    await until(lambda: MODEL in worker.router.fleet.models)
    texts = index.fleet.models[MODEL].policy.index.texts
    before, now = ([SOURCE.getrandbits(64) for _ in range(3)] for _ in range(2))
    for chain, retold in ((before, True), (now, False)):
        report = PromptReport(chain, [1, 2, 3], SOURCE.randbytes(3 * HASH_BYTES))
        for each in (worker, other):
            each.link.tell(Learned(MODEL, report, retold))
    await until(lambda: (texts.known(before), texts.known(now)) == (3, 3))
    replica(index, "a").serves = ModelIdentity("tiny", "1")
    replica(index, "a").observed(Health.READY)
    assert (texts.known(before), texts.known(now)) == (3, 0)
    # Later it is the engines' hashes that have changed
    index._grown()
    replica(index, "a").serves = ModelIdentity("tiny", "2")
    replica(index, "a").observed(Health.SUSPECT)
    assert texts.known(before) == 0


async def test_a_worker_that_lags_is_told_everything_anew(start, until, monkeypatch) -> None:
    index, worker = await start.index(), await start.worker()
    await until(lambda: bool(index._publisher.workers))
    chain, names = tell_prompt(index, "a")
    await until(lambda: worker.hits(chain) == {"a": (4, "exact")})
    [told] = index._publisher.workers
    monkeypatch.setattr(publisher_module, "MAX_BEHIND", 2_000_000)
    reading = worker.link._link._writer.transport
    reading.pause_reading()  # as a stopped process
    hashes = [SOURCE.getrandbits(64) for _ in range(MAX_BLOCKS)]
    sent = Routed(-1, replica(index, "a").slot, hashes, 0)
    for _ in range(4_000_000 // (8 * MAX_BLOCKS)):
        index._handle_message(told, sent)
    await until(lambda: index._publisher.lagged == 1)
    sink = index.fleet.models[MODEL].policy.sink
    sink.removed(replica(index, "a"), BlockRemoved(names[-1:]))
    assert told.link.unsent < 4_000_000
    reading.resume_reading()
    await until(lambda: worker.hits(chain) == {"a": (3, "exact")})
    assert worker.away == 0, "it is the same connection"


async def test_a_message_that_cannot_be_handled_costs_a_snapshot_and_no_connection(
    start, until
) -> None:
    """Also when it is an error of files, which is none of the connection's."""
    index, worker = await start.index(), await start.worker()
    await until(lambda: bool(index._publisher.workers))
    handle = index._publisher._handle

    def fail(*_: Any) -> None:
        index._publisher._handle = handle
        raise OSError("no space is left")

    index._publisher._handle = fail
    first = worker.link._link
    await until(lambda: any(isinstance(each, Complete) for each in worker.messages))
    worker.messages.clear()
    worker.link.tell(ReplicaSuspected(0))
    await until(lambda: any(isinstance(each, Complete) for each in worker.messages))
    assert index._tasks.failures == {"worker's message": 1}
    assert worker.link._link is first


async def test_news_that_cannot_be_applied_are_told_anew_and_the_worker_serves_on(
    start, until
) -> None:
    index, worker = await start.index(), await start.worker()
    await until(lambda: any(isinstance(each, Complete) for each in worker.messages))
    apply = worker.follower.apply_message

    def fail(*_: Any) -> None:
        worker.follower.apply_message = apply
        raise ZeroDivisionError("a defect")

    worker.follower.apply_message = fail
    chain, _ = tell_prompt(index, "b")
    await until(lambda: worker.hits(chain) == {"b": (4, "exact")})
    assert worker.link._tasks.failures == {"index link": 1}


async def test_a_snapshot_that_cannot_be_made_ends_the_connection(start, until) -> None:
    index, worker = await start.index(), await start.worker()
    await until(lambda: MODEL in worker.router.fleet.models)
    publisher, state = index._publisher, index._publisher.state

    def fail() -> Any:
        publisher.state = state
        raise RuntimeError("a defect")

    publisher.state = fail
    first = worker.link._link
    worker.link.tell(ResyncRequest())
    await until(lambda: index._tasks.failures["snapshots"] == 1)
    await until(lambda: worker.link._link not in (None, first))


async def test_news_that_are_missing_end_the_connection_and_all_is_told_anew(start, until) -> None:
    index, worker = await start.index(), await start.worker()
    await until(lambda: bool(index._publisher.workers))
    first = worker.link._link
    await until(lambda: MODEL in worker.router.fleet.models)
    worker.link._number -= 1
    chain, _ = tell_prompt(index, "b")
    await until(lambda: worker.hits(chain) == {"b": (4, "exact")})
    assert worker.link._link is not first


async def test_stale_knowledge_stays_until_a_new_index_process_knows_better(start, until) -> None:
    index, worker = await start.index(), await start.worker()
    await until(lambda: bool(index._publisher.workers))
    replica(index, "a").observed(Health.READY)
    chain, names = tell_prompt(index, "ab")
    await until(lambda: worker.hits(chain) == {"a": (4, "exact"), "b": (4, "exact")})
    copy = replica(worker.router, "a")
    copy.acquire()
    await index.end()
    await until(lambda: worker.away == 1)
    successor = await start.index()
    await until(lambda: bool(successor._publisher.workers))
    await until(lambda: not worker.link.is_away)
    assert replica(worker.router, "a") is copy, "with what it has in flight"
    assert copy.health is Health.READY
    assert copy.slot == replica(successor, "a").slot
    assert worker.hits(chain) == {"a": (4, "exact"), "b": (4, "exact")}
    # What engines tell again is all there is
    sink = successor.fleet.models[MODEL].policy.sink
    ends = b"".join(names[1::2])
    sink.learned(PromptReport(chain, [2, 4, 6, 8], ends))
    sink.stored(replica(successor, "a"), BlockStored(names[:2], None, [], 16))
    await until(lambda: worker.hits(chain) == {"a": (1, "exact"), "b": (4, "exact")})
    copy.release()


async def test_blocks_of_other_engines_are_told_by_their_own_hashes(start, until) -> None:
    index, worker = await start.index(), await start.worker()
    foreign = ReplicaSpec("v", "127.0.0.1", 3, engine=EngineKind.VLLM)
    index.apply((ModelSpec(MODEL, replicas=(foreign,)),))
    await until(lambda: bool(index._publisher.workers))
    sink = index.fleet.models[MODEL].policy.sink
    sink.stored(replica(index, "v"), BlockStored([7, 8], None, list(range(32)), 16))
    own = index.fleet.models[MODEL].policy.index.residency._foreign[replica(index, "v")]
    ends = [own.table.get(number).to_bytes(HASH_BYTES, "little") for number in (7, 8)]
    chain = [11, 12]
    sink.learned(PromptReport(chain, [1, 2], b"".join(ends)))
    await until(lambda: MODEL in worker.router.fleet.models)
    await until(lambda: worker.hits(chain) == {"v": (2, "exact")})
    sink.removed(replica(index, "v"), BlockRemoved([8]))
    await until(lambda: worker.hits(chain) == {"v": (1, "exact")})
