"""Cost of a worker's view of the index: own copies told of changes, or one shared table.

    python benchmarks/router_workers.py [--save]

What each costs a worker, in CPU time, by what the other workers do:

- own copies (what the router does): looking up in dictionaries, and for each prompt that another
  worker sent, and each KV block that engines tell of, taking the message in
- one table in shared memory, written by the index process: looking up by bisection as well, but in
  a memory map, where each look is several operations of the interpreter; nothing to take in

Both are asked for the same prompts: 2 KB and 64 KB of text in a fleet of 8 replicas. The table is
a hash table of 64-bit keys and values with open addressing, half full. Figures are CPU time, the
least of several rounds. The last rows say what a request costs a worker more than in a router of
one process, when each of so many workers sends as much, and engines tell of 32 KV blocks a request:
stored and evicted ones of a prompt of 500 tokens, half of it new. Of these, one in eight is where
a text block ends, and only by such blocks a worker can find anything.
"""

from __future__ import annotations

import argparse
import mmap
import random
import time
from collections.abc import Callable, Sequence

from common import Figure, Report, Table, warn_if_busy
from router_choice import make_replicas

from kvasir.wire.text_chain import text_hashes
from kvasir_router.index.approximate import ApproximateIndex
from kvasir_router.index.residency import Residency
from kvasir_router.workers.replication.messages import (
    BLOCKS_PER_MESSAGE,
    Frame,
    Held,
    Routed,
    decode_frame,
    encode,
    pack_keys,
    unpack_keys,
)

REPLICAS = 8
PROMPTS = 512
SLOTS = 2**18
BLOCKS_A_REQUEST = 32
ENDS = 1 / 8
ROUNDS = 7
A_FRAME = 16


class SharedTable:
    """Table that a worker would read: keys and masks of replicas in shared memory."""

    def __init__(self) -> None:
        self._keys = memoryview(mmap.mmap(-1, 8 * SLOTS)).cast("Q")
        self._values = memoryview(mmap.mmap(-1, 8 * SLOTS)).cast("Q")

    def get(self, key: int) -> int:
        keys, at = self._keys, key & (SLOTS - 1)
        while found := keys[at]:
            if found == key:
                return self._values[at]
            at = (at + 1) & (SLOTS - 1)
        return 0

    def put(self, key: int, value: int) -> None:
        keys, at = self._keys, key & (SLOTS - 1)
        while keys[at] not in (0, key):
            at = (at + 1) & (SLOTS - 1)
        self._values[at] = value
        keys[at] = key


def match(get: Callable[[int], int], chain: Sequence[int]) -> int:
    """The look-ups of ApproximateIndex.match, and nothing else."""
    having, depth = -1, 0
    for block in chain:
        mask = get(block) & having
        if not mask:
            break
        having, depth = mask, depth + 1
    return depth


def chains(size: int) -> list[Sequence[int]]:
    """Return the text hashes of prompts of which half is one of eight system texts."""
    source = random.Random(1)
    systems = [source.randbytes(size // 2) for _ in range(8)]
    return [text_hashes(systems[i % 8] + source.randbytes(size // 2)) for i in range(PROMPTS)]


def least_us(work: Callable[[], object], count: int) -> list[float]:
    """Return the microseconds of each round, for one of `count` things that `work` does."""
    found = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        work()
        found.append((time.thread_time() - start) / count * 1e6)
    return found


def looks(prompts: list[Sequence[int]]) -> tuple[list[float], list[float]]:
    """Microseconds a prompt: in a dictionary, in the shared table."""
    table = SharedTable()
    known: dict[int, int] = {}
    for at, chain in enumerate(prompts):
        for block in chain:
            known[block] = known.get(block, 0) | 1 << at % REPLICAS
    for block, mask in known.items():
        table.put(block, mask)
    others = random.Random(2)
    for _ in range(SLOTS // 2 - len(known)):
        table.put(others.getrandbits(64) | 1, 1)

    def in_copy() -> None:
        get = known.get
        for chain in prompts:
            match(lambda block: get(block, 0), chain)

    def in_table() -> None:
        for chain in prompts:
            match(table.get, chain)

    return least_us(in_copy, len(prompts)), least_us(in_table, len(prompts))


def taking_in(prompts: list[Sequence[int]]) -> list[float]:
    """Microseconds a prompt that another worker sent, its message's decoding included."""
    replicas, index = make_replicas(REPLICAS), ApproximateIndex()
    messages = [
        Routed(0, at % REPLICAS, chain, len(chain) // 2) for at, chain in enumerate(prompts)
    ]
    frames = [
        encode(Frame(at, list(messages[at : at + A_FRAME])))
        for at in range(0, len(messages), A_FRAME)
    ]

    def take() -> None:
        for frame in frames:
            for message in decode_frame(frame).messages:
                assert isinstance(message, Routed)
                index.routed(message.texts, replicas[message.slot], message.known, 10**6)

    return least_us(take, len(prompts))


def blocks() -> list[float]:
    """Microseconds a KV block that is told of."""
    replica = make_replicas(1)[0]
    source = random.Random(3)
    count = 100
    frames = [
        encode(
            Frame(
                at,
                [
                    Held(
                        0,
                        0,
                        "GPU",
                        16,
                        pack_keys([source.getrandbits(128) for _ in range(BLOCKS_PER_MESSAGE)]),
                    )
                ],
            )
        )
        for at in range(count)
    ]

    def take() -> None:
        residency = Residency()
        for frame in frames:
            for message in decode_frame(frame).messages:
                assert isinstance(message, Held)
                keys = unpack_keys(message.keys)
                residency.hold(replica, message.group, message.tier, message.block_size, keys)

    return least_us(take, count * BLOCKS_PER_MESSAGE)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    warn_if_busy()
    told = blocks()
    figures = [Figure("taking in a KV block", "µs", told, digits=3)]
    rows = []
    for name, size in (("2 KB", 2_000), ("64 KB", 65_000)):
        prompts = chains(size)
        copy, table = looks(prompts)
        taken = taking_in(prompts)
        figures += [
            Figure(f"looking up {name} in an own copy", "µs", copy),
            Figure(f"looking up {name} in a shared table", "µs", table),
            Figure(f"taking in {name} that another worker sent", "µs", taken),
        ]
        # Of approximate index, texts and blocks, each looked up along the chain
        shared = 3 * (min(table) - min(copy))
        for workers in (2, 4, 8, 16):
            sent = (workers - 1) * min(taken)
            events = workers * BLOCKS_A_REQUEST * min(told)
            costs = sent + events, sent + events * ENDS, sent, shared
            rows.append([name, str(workers), *(f"{cost:.1f}" for cost in costs)])
    Report(
        name="router_workers",
        title="How workers see the index",
        work="What a worker pays for its own copy of the index, or for reading a shared one.",
        figures=figures,
        tables=[
            Table(
                "µs a request more than in one process",
                [
                    *("prompt", "workers", "own copies of everything", "of what texts lead to"),
                    *("without events", "shared table"),
                ],
                rows,
            )
        ],
        folder="",
    ).publish(save=given.save)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
