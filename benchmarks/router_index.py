"""Cost of the exact index: memory a block, events a second, microseconds a lookup.

    python benchmarks/router_index.py [--blocks 312500] [--save]

Blocks are stored in chains of 64, as engines tell of a prompt of 1,024 tokens, for 8 replicas; then
a tenth of them is evicted. Memory is what Python allocates (tracemalloc), measured apart from the
times and with fewer shards, so that each has as many blocks as it has with 10 million in all. The
approximate index and the map of texts are measured beside. Times are the least of several rounds.
"""

import argparse
import asyncio
import gc
import math
import random
import time
import tracemalloc
from collections.abc import Callable

from common import Figure, Report, Table, warn_if_busy

from kvasir.wire.block_hash import HASH_BYTES
from kvasir.wire.kv_events import (
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEvent,
    decode_batch,
    encode_batch,
)
from kvasir.wire.text_chain import BLOCK_ENDS, MAX_BLOCKS
from kvasir_router.discovery.specs import EngineKind, ReplicaSpec
from kvasir_router.fleet.replica import Replica
from kvasir_router.index import block_table
from kvasir_router.index.approximate import ApproximateIndex
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.residency import Residency
from kvasir_router.index.text_map import TextMap
from kvasir_router.wire.upstream_pool import ConnectionPool

CHAIN = 64
BLOCK_SIZE = 16
TARGET = 10_000_000
REPLICAS = 8
ROUNDS = 5


def make_replicas(kind: EngineKind) -> list[Replica]:
    pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
    return [
        Replica(ReplicaSpec(f"r{at}", "127.0.0.1", 1, engine=kind), pool, 1, lambda: None)
        for at in range(REPLICAS)
    ]


def payloads(blocks: int, source: random.Random) -> list[bytes]:
    """Batches of events as they come over the wire, one chain each."""
    made = []
    for _ in range(blocks // CHAIN):
        names = [source.randbytes(HASH_BYTES) for _ in range(CHAIN)]
        tokens = [source.randrange(128_000) for _ in range(CHAIN * BLOCK_SIZE)]
        made.append(
            encode_batch(EventBatch(0.0, [BlockStored([*names], None, tokens, BLOCK_SIZE)]))
        )
    return made


def take(residency: Residency, replicas: list[Replica], batches: list[bytes]) -> None:
    for at, payload in enumerate(batches):
        for event in decode_batch(payload).events:
            assert isinstance(event, BlockStored)
            residency.stored(replicas[at % REPLICAS], event)


def evict(residency: Residency, replicas: list[Replica], events: list[list[KVEvent]]) -> None:
    for at, (event,) in enumerate(events):
        assert isinstance(event, BlockStored)
        residency.removed(replicas[at % REPLICAS], BlockRemoved(event.block_hashes[-CHAIN // 10 :]))


def bytes_of(fill: Callable[[], object]) -> int:
    """Return the bytes that `fill` leaves allocated."""
    gc.collect()
    tracemalloc.start()
    kept = fill()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def exact(kind: EngineKind, blocks: int) -> dict[str, float]:
    """The residency of one kind of engines' blocks."""
    replicas = make_replicas(kind)
    batches = payloads(blocks, random.Random(1))
    stored = len(batches) * CHAIN

    def filled() -> Residency:
        residency = Residency()
        take(residency, replicas, batches)
        return residency

    shards, mask = block_table.SHARDS, block_table._SHARD_BITS
    few = 1 << round(math.log2(stored * shards / TARGET))
    block_table.SHARDS, block_table._SHARD_BITS = few, few - 1
    size = bytes_of(filled) / stored
    block_table.SHARDS, block_table._SHARD_BITS = shards, mask
    taken = seconds(filled)
    residency = filled()
    events = [decode_batch(payload).events for payload in batches]
    gone = seconds(lambda: evict(residency, replicas, events), 1)
    return {
        "bytes a block": round(size, 1),
        "GB at 10 M blocks": round(size * TARGET / 1e9, 2),
        "blocks stored a second": round(stored / taken),
        "blocks removed a second": round(len(events) * (CHAIN // 10) / gone),
    }


def lookups(blocks: int) -> dict[str, float]:
    """Texts of 1 MiB, 8 KV blocks for each of their blocks, held to different depths."""
    source = random.Random(2)
    replicas = make_replicas(EngineKind.KVASIR)
    residency, texts = Residency(), TextMap()
    take(residency, replicas, payloads(blocks, source))
    chains = []
    for _ in range(20):
        chain = [source.getrandbits(64) for _ in range(MAX_BLOCKS)]
        names = [source.randbytes(HASH_BYTES) for _ in range(8 * len(chain))]
        last = b"".join(names[7::8])
        texts.learn(PromptReport(chain, [8 * (at + 1) for at in range(len(chain))], last))
        for replica in replicas:
            held = names[: source.randrange(8, len(names))]
            residency.stored(replica, BlockStored([*held], None, [], BLOCK_SIZE))
        chains.append(chain)

    def look(length: int) -> float:
        return seconds(lambda: [residency.match(texts, chain[:length]) for chain in chains], 50)

    return {
        f"us a lookup, {BLOCK_ENDS[length] // 1024} KB of text": round(
            look(length) / len(chains) * 1e6, 1
        )
        for length in (4, 44, 85)
    }


def others(blocks: int) -> dict[str, float]:
    """The approximate index and the map of texts."""
    source = random.Random(3)
    replicas = make_replicas(EngineKind.KVASIR)
    chains = [[source.getrandbits(64) for _ in range(128)] for _ in range(blocks // 128)]
    reports = [PromptReport(c, range(1, 129), source.randbytes(128 * HASH_BYTES)) for c in chains]
    counted: list[int] = []

    def approximate() -> ApproximateIndex:
        index = ApproximateIndex()
        for at, chain in enumerate(chains):
            index.routed(chain, replicas[at % REPLICAS], 0, 10**9)
        counted.append(index.blocks)
        return index

    def known() -> TextMap:
        texts = TextMap()
        for report in reports:
            texts.learn(report)
        return texts

    return {
        "approximate: bytes an entry": round(bytes_of(approximate) / counted[-1], 1),
        "texts: bytes a block": round(bytes_of(known) / (len(chains) * 128), 1),
    }


def publish(results: dict[str, dict[str, float]], blocks: int, *, save: bool) -> None:
    """Memory and the intake of events have goals."""
    own = results["Kvasir engines"]
    rows = [
        [part, name, f"{value:,}"]
        for part, parts in results.items()
        for name, value in parts.items()
    ]
    Report(
        name="router_index",
        title="What the exact index costs",
        work=f"{blocks:,} blocks in chains of {CHAIN} for {REPLICAS} replicas.",
        figures=[
            Figure("memory at 10 M blocks", "GB", [own["GB at 10 M blocks"]], "<= 1.5"),
            Figure("blocks stored", "a second", [own["blocks stored a second"]], ">= 200000", 0),
        ],
        tables=[Table("All of it", ["part", "figure", "value"], rows)],
        packages=("msgspec", "xxhash"),
        folder="",
    ).publish(save=save)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=312_500)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    warn_if_busy()
    results = {
        "Kvasir engines": exact(EngineKind.KVASIR, options.blocks),
        "other engines": exact(EngineKind.VLLM, options.blocks),
        "lookups": lookups(options.blocks),
        "beside": others(options.blocks),
    }
    publish(results, options.blocks, save=options.save)


if __name__ == "__main__":
    asyncio.run(main())
