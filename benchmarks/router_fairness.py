"""Cost of a greedy tenant for the others: their first tokens beside it and without it.

    python benchmarks/router_fairness.py [--seconds 30] [--repeat 3] [--save]

Two engines with `--device sim` of 16 sequences each, their clocks four times as fast (figures are
in real seconds), have the speed of llm-d's pods (`sim_fleet.py`); tokens are not scaled, since who
comes waits for the step that runs. The router has an API key for each of five tenants of equal
weight. Requests have 800 tokens in and 128 to 384 out. A share is a fifth of what the whole fleet
can do, measured first. Then, alternating: all five send 0.6 of their share; four send that and the
fifth 20 times its share. Arrivals are Poisson, and those of the four are the same in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from common import Figure, Report, Table, free_port, wait_for, warn_if_busy
from router_tools import FORM, process, router_command, write_keys
from sim_fleet import SECRET, Engine, Scale, Words, sim_fleet
from stream_load import Client

from kvasir_router.admission.keys import make_key

TENANTS = ("greedy", "a", "b", "c", "d")
REPLICAS = 2
SEQUENCES = 16
SCALE = Scale(tokens=1, speed=4.0)
PROMPT, OUTPUT = 800, 256
USUAL, GREEDY = 0.6, 20.0
WARMUP_SECONDS = 8.0
PATIENCE = 4.0
"""Seconds that requests get after a phase to end; the greedy tenant's backlog takes longer."""


@dataclass
class Phase:
    """Real seconds to the first token, by tenant, and requests refused."""

    first: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TENANTS})
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TENANTS, 0))
    answered: int = 0

    @property
    def others(self) -> list[float]:
        return sorted(t for name in TENANTS[1:] for t in self.first[name])

    def percentile(self, part: float) -> float:
        """Return the percentile of the four others' first tokens, in seconds."""
        return statistics.quantiles(self.others, n=1000)[round(part * 1000) - 1]


class Fleet:
    """A router with keys, and requests to it."""

    def __init__(self, port: int, keys: dict[str, str], words: Words) -> None:
        self._port = port
        self._keys = keys
        self._words = words
        self._source = random.Random(5)

    async def ask(self, tenant: str, phase: Phase) -> None:
        """Send one request of the tenant, and count it in the phase."""
        prompt = self._words.text(self._source, SCALE.count(PROMPT))
        content = {"model": "bench", "stream": True, "ignore_eos": True}
        content |= {"messages": [{"role": "user", "content": prompt}]}
        content["max_tokens"] = SCALE.count(self._source.randint(OUTPUT // 2, OUTPUT * 3 // 2))
        body = json.dumps(content).encode()
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        ) % (self._keys[tenant].encode(), len(body), body)
        transport, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(request, lambda _: None), "127.0.0.1", self._port
        )
        try:
            call = await client.done
            phase.first[tenant].append((call.first - call.started) * SCALE.speed)
            phase.answered += 1
        except OSError:
            phase.refused[tenant] += 1
        finally:
            transport.abort()

    async def capacity(self) -> float:
        """Requests a second with every place taken."""
        phase = Phase()
        until = time.monotonic() + WARMUP_SECONDS

        async def again() -> None:
            while time.monotonic() < until:
                await self.ask("a", phase)

        begin = time.monotonic()
        await asyncio.gather(*(again() for _ in range(REPLICAS * SEQUENCES)))
        return phase.answered / (time.monotonic() - begin)

    async def run(self, rates: dict[str, float], seconds: float, seed: int) -> Phase:
        """Poisson arrivals at these rates."""
        phase = Phase()
        tasks: set[asyncio.Task[None]] = set()

        async def arrive(tenant: str) -> None:
            source = random.Random(f"{tenant} {seed}")
            due = begin = time.monotonic()
            while (due := due + source.expovariate(rates[tenant])) < begin + seconds:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.add(asyncio.create_task(self.ask(tenant, phase)))

        await asyncio.gather(*map(arrive, TENANTS))
        _, late = await asyncio.wait(tasks, timeout=PATIENCE)
        for task in late:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*late, return_exceptions=True)
        return phase


async def measure(
    port: int, keys: dict[str, str], words: Words, options: argparse.Namespace
) -> tuple[float, list[tuple[Phase, Phase]]]:
    """The fleet's requests a second, and pairs of phases: without and with greed."""
    fleet = Fleet(port, keys, words)
    capacity = await fleet.capacity()
    share = capacity / len(TENANTS)
    usual = dict.fromkeys(TENANTS, USUAL * share)
    greedy = usual | {TENANTS[0]: GREEDY * share}
    await fleet.run(greedy, WARMUP_SECONDS, seed=0)
    pairs = []
    for seed in range(1, options.repeat + 1):
        even = await fleet.run(usual, options.seconds, seed)
        pairs.append((even, await fleet.run(greedy, options.seconds, seed)))
    return capacity, pairs


def run(folder: Path, options: argparse.Namespace) -> tuple[float, list[tuple[Phase, Phase]]]:
    """Start everything, and measure."""
    words, model = Words(SCALE), folder / "model"
    words.write_model(model, 4096)
    keys = {tenant: make_key() for tenant in TENANTS}
    write_keys(folder / "keys.yaml", keys)
    with sim_fleet(
        folder, model, SCALE, replicas=REPLICAS, kv_tokens=307_328, max_num_seqs=SEQUENCES
    ) as engines:
        config, port = folder / "fleet.json", free_port()
        config.write_text(json.dumps(_discovery(engines)))
        command, environment = router_command(
            config, port, "--keys-file", str(folder / "keys.yaml"), *options.router
        )
        environment["KVASIR_FLEET_SECRET"] = SECRET
        cpus = os.sched_getaffinity(0)
        with process(*command, cpus=cpus, environment=environment) as router:
            wait_for(
                f"http://127.0.0.1:{port}/ready",
                within=30,
                process_alive=lambda: router.poll() is None,
            )
            return uvloop.run(measure(port, keys, words, options))


def _discovery(engines: list[Engine]) -> dict[str, object]:
    replicas = [engine.entry(i, with_events=False) for i, engine in enumerate(engines)]
    return {"models": [{"name": "bench", "replicas": replicas}]}


def publish(capacity: float, pairs: list[tuple[Phase, Phase]], options: argparse.Namespace) -> None:
    """Figures and a table."""
    slower = [beside.percentile(0.95) / even.percentile(0.95) - 1 for even, beside in pairs]
    rows = [
        [
            f"{i}, {name}",
            *(f"{1000 * phase.percentile(part):.0f}" for part in (0.5, 0.95, 0.99)),
            str(len(phase.others)),
            str(sum(phase.refused[tenant] for tenant in TENANTS[1:])),
            str(len(phase.first[TENANTS[0]])),
        ]
        for i, pair in enumerate(pairs, 1)
        for name, phase in zip(("even", "beside greed"), pair, strict=True)
    ]
    Report(
        name="router_fairness",
        title="Router: fairness between tenants",
        work=f"Five tenants of equal weight on a fleet of {capacity / SCALE.speed:.1f} requests/s "
        f"with clocks {SCALE.speed:g} times as fast; four send "
        f"{USUAL} of their share, the fifth as much or {GREEDY:.0f} times its share; the router "
        f"{FORM}.",
        figures=[
            Figure(
                "others' TTFT p95 beside a greedy tenant, slower by",
                "%",
                [100 * each for each in slower],
                goal="<= 10",
                digits=1,
            )
        ],
        tables=[
            Table(
                "The four others, ms to the first token",
                ["phase", "p50", "p95", "p99", "answered", "refused", "greedy's answered"],
                rows,
            )
        ],
        packages=("uvloop",),
        folder="",
    ).publish(save=options.save)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of a phase")
    parser.add_argument("--repeat", type=int, default=3, help="pairs of phases")
    parser.add_argument("--router", nargs="*", default=[], help="further options of the router")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        publish(*run(Path(folder), options), options)


if __name__ == "__main__":
    main()
