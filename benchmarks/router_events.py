"""Cost of block events for requests: latency while engines report many KV blocks, and without.

    python benchmarks/router_events.py [--rate 200000] [--seconds 5] [--repeat 5] [--save]

Eight publishers in one process tell of chains of 64 blocks, stored once and evicted when 400,000
later ones are there, at `--rate` blocks a second in all; the router has `--workers` workers and its
index process, which takes the events in. Beside that, unary chat requests of 2 KB to native mocks,
16 in flight, with kv_aware. Rounds with events and without alternate. What was taken in is what the
router says of itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections import deque
from pathlib import Path

import zmq
from common import Figure, Report, free_port, wait_for, warn_if_busy
from router_overhead import WORKLOADS, write_workload
from router_tools import FORM, MODEL, Cores, build_native, process, router_command, run_load

from kvasir.wire.block_hash import HASH_BYTES
from kvasir.wire.kv_events import BlockRemoved, BlockStored, EventBatch, KVEvent, encode_batch

REPLICAS = 8
CHAIN, BLOCK_SIZE = 64, 16
KEPT = 400_000 // CHAIN
"""Chains that a publisher's cache holds at most."""
TURN = 0.005
IN_FLIGHT = 16


def publish_events(ports: list[int], rate: float) -> None:
    """Tell of blocks until the process is ended."""
    context, source = zmq.Context(), random.Random(1)
    sockets = [context.socket(zmq.PUB) for _ in ports]
    for socket, port in zip(sockets, ports, strict=True):
        socket.bind(f"tcp://127.0.0.1:{port}")
    held: list[deque[list[bytes]]] = [deque() for _ in ports]
    sent, begin = 0, time.monotonic()
    while True:
        due = int((time.monotonic() - begin) * rate / CHAIN)
        for number in range(sent, due):
            at, sequence = number % len(ports), number // len(ports)
            payload = encode_batch(EventBatch(time.time(), _events(held[at], source)))
            sockets[at].send_multipart([b"kv", sequence.to_bytes(8, "big"), payload])
        sent = max(sent, due)
        time.sleep(TURN)


def _events(held: deque[list[bytes]], source: random.Random) -> list[KVEvent]:
    names = source.randbytes(HASH_BYTES * CHAIN)
    chain: list[bytes] = [names[at : at + HASH_BYTES] for at in range(0, len(names), HASH_BYTES)]
    held.append(chain)
    events: list[KVEvent] = [BlockStored([*chain], None, [7] * (CHAIN * BLOCK_SIZE), BLOCK_SIZE)]
    if len(held) > KEPT:
        events.append(BlockRemoved([*held.popleft()]))
    return events


def batches(admin_port: int) -> float:
    """Batches of events that the router has taken in."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"_feed_events_total\{[^}]*kv_batches[^}]*\} ([\d.e+]+)", text)
    return sum(map(float, found))


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Return one row a round."""
    available = sorted(os.sched_getaffinity(0))
    few = min(options.workers + 1, max(1, len(available) // 2))
    cores = Cores(set(available[:few]), set(available[few:]))
    native, work = build_native(folder), WORKLOADS[0]
    write_workload(folder / work.name, work, random.Random(1))
    ports, events = ([free_port() for _ in range(REPLICAS)] for _ in range(2))
    entries = [
        {
            "id": f"r{i}",
            "url": f"http://127.0.0.1:{port}",
            "engine": "kvasir",
            "kv_events": f"tcp://127.0.0.1:{event}",
        }
        for i, (port, event) in enumerate(zip(ports, events, strict=True))
    ]
    config, port, admin = folder / "fleet.json", free_port(), free_port()
    config.write_text(json.dumps({"models": [{"name": MODEL, "replicas": entries}]}))
    command, environment = router_command(
        config, port, "--admin-port", str(admin), "--workers", str(options.workers)
    )
    publisher = [sys.executable, __file__, "--rate", str(options.rate), "--publish"]
    rows = []
    with (
        process(native.mock, *map(str, ports), cpus=cores.others),
        process(*command, cpus=cores.router, environment=environment) as router,
    ):
        wait_for(f"http://127.0.0.1:{port}/ready", within=30, process_alive=lambda: True)

        def load() -> float:
            run = run_load(
                native,
                cores,
                port,
                folder / work.name,
                in_flight=IN_FLIGHT,
                warmup=2.0,
                seconds=options.seconds,
                pid=router.pid,
            )
            return float(run.counts["whole"]["p99"]) / 1000

        for _ in range(options.repeat):
            quiet = load()
            with process(*publisher, ",".join(map(str, events)), cpus=cores.others):
                time.sleep(2.0)  # the feeds connect
                before, since = batches(admin), time.monotonic()
                beside = load()
                rate = CHAIN * (batches(admin) - before) / (time.monotonic() - since)
            rows.append({"quiet": quiet, "beside": beside, "rate": rate})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=200_000, help="KV blocks a second")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.publish:
        publish_events([int(port) for port in options.publish.split(",")], options.rate)
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder))
    Report(
        name="router_events",
        title="Block events beside requests",
        work=(
            f"{options.rate:,.0f} KV blocks a second told by {REPLICAS} engines; a router of "
            f"{options.workers} workers, {FORM}; unary 2 KB requests, {IN_FLIGHT} in flight."
        ),
        figures=[
            Figure("blocks taken in a second", "", [row["rate"] for row in rows], digits=0),
            Figure("request p99 without events", "ms", [row["quiet"] for row in rows]),
            Figure("moved by", "ms", [row["beside"] - row["quiet"] for row in rows], "<= 1"),
        ],
        packages=("pyzmq", "msgspec", "uvloop"),
        folder="",
    ).publish(save=options.save)


if __name__ == "__main__":
    main()
