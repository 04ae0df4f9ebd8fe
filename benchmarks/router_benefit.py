"""What choosing a replica by its KV cache is worth: output and first tokens, policy by policy.

    python benchmarks/router_benefit.py [--policies round_robin,least_load,approximate,exact]
        [--works capacity,chat,agent] [--stages below,knee,past] [--scale 4] [--speed 1] [--save]

Eight engines with `--device sim` stand for llm-d's pods: Qwen3-32B on two GPUs, 15,900 prompt
tokens a second and 307,328 tokens of KV cache each; `sim_fleet.py` says how tokens are scaled
(`--scale`) and clocks run faster (`--speed`).
Figures are given in real tokens and seconds. Each policy starts with a fresh fleet, and each stage
follows the one before it:

- capacity: llm-d's benchmark 73-capacity: 150 groups of 5 prompts, 6,000 tokens of system text and
  a question of 1,200, 1,000 tokens out, Poisson arrivals; prompts fill 73 % of the fleet's cache
- chat: conversations of up to 6 rounds: 1,500 tokens of system text of 20 kinds, 300 a question,
  250 an answer, 10 s between rounds; conversations arrive at a Poisson rate
- agent: runs of up to 12 calls that grow with their tools' results: one of 10 system texts of
  4,000 tokens, results of 800, answers of 80, 1 s for a tool

`round_robin`, `least_load`, ... are the router's policies; `approximate` is kv_aware that hears no
block events, `exact` kv_aware that does. A stage is below the knee, at it or past it for a policy
that finds every prefix; round_robin has its knee below. Printed with each stage is how busy the
machine was: above 90 % the figures say more of the machine than of the policy.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvloop
from common import Figure, Report, Table, free_port, wait_for, warn_if_busy
from router_tools import cpu_ns, process, router_command
from sim_fleet import SECRET, Engine, Scale, Words, sim_fleet

REPLICAS = 8
KV_TOKENS = 307_328
STAGES = ("below", "knee", "past")
KV_AWARE = {"approximate": False, "exact": True}
"""Policies that are kv_aware, and whether they hear of block events."""


@dataclass
class Call:
    """One request as its client saw it; seconds of this machine's clock."""

    started: float
    first: float = 0.0
    ended: float = 0.0
    text: str = ""
    tokens: int = 0


class Client(asyncio.Protocol):
    """Sends one chat request over a connection of its own, and reads the stream."""

    def __init__(self, request: bytes, counted: Callable[[int], None]) -> None:
        self._request = request
        self._counted = counted
        self._data = b""
        self._parts: list[str] = []
        self.call = Call(time.monotonic())
        self.done: asyncio.Future[Call] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        *events, self._data = (self._data + data).split(b"\n\n")
        for event in events:
            start = event.find(b"data: {")
            if start >= 0:
                self._event(json.loads(event[start + 6 :].split(b"\n", 1)[0]))
        if b"data: [DONE]" in self._data or any(b"data: [DONE]" in event for event in events):
            self.call.ended = time.monotonic()
            self.call.text = "".join(self._parts)
            if not self.done.done():
                self.done.set_result(self.call)

    def _event(self, event: dict[str, Any]) -> None:
        for choice in event.get("choices", ()):
            text = choice.get("delta", {}).get("content")
            if text:
                self.call.first = self.call.first or time.monotonic()
                self._parts.append(text)
                words = len(text.split())
                self.call.tokens += words
                self._counted(words)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"no whole answer: {self._data[:200]!r}"))


@dataclass
class Stage:
    """What happened between its begin and its end."""

    calls: list[Call] = field(default_factory=list)
    lost: int = 0
    unfinished: int = 0
    tokens: int = 0
    seconds: float = 0.0
    machine: float = 0.0
    """Share of all cores that was busy."""
    router: float = 0.0
    """Share of one core that the router used."""


class Load:
    """Requests to one router, counted."""

    def __init__(self, port: int, scale: Scale) -> None:
        self.port = port
        self.scale = scale
        self.stage = Stage()
        self.running: set[asyncio.Task[None]] = set()

    async def ask(self, messages: list[dict[str, Any]], real_tokens: int) -> Call:
        """Raises OSError when the answer was not whole."""
        stage = self.stage
        content = {"model": "bench", "messages": messages, "stream": True, "ignore_eos": True}
        content["max_tokens"] = self.scale.count(real_tokens)
        body = json.dumps(content).encode()
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        transport, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(request, self._count), "127.0.0.1", self.port
        )
        stage.calls.append(client.call)
        try:
            return await client.done
        except OSError:
            stage.lost += 1
            raise
        finally:
            transport.abort()

    def _count(self, tokens: int) -> None:
        self.stage.tokens += tokens

    def start(self, session: Awaitable[None]) -> None:
        async def run() -> None:
            with suppress(OSError):
                await session

        task = asyncio.create_task(run())
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def sleep(self, real_seconds: float) -> None:
        await asyncio.sleep(real_seconds / self.scale.speed)


Session = Callable[[Load], Awaitable[None]]


@dataclass(frozen=True)
class Work:
    """`sessions` yields one session for each arrival; `rates` a second, by stage."""

    name: str
    sessions: Callable[[Scale, Words, random.Random], AsyncIterator[Session]]
    rates: dict[str, float]
    warmup_rate: float


def message(role: str, content: str) -> dict[str, Any]:
    if role == "tool":
        return {"role": role, "tool_call_id": "call", "content": content}
    return {"role": role, "content": content}


async def capacity(scale: Scale, words: Words, source: random.Random) -> AsyncIterator[Session]:
    systems = [words.text(source, scale.count(6000)) for _ in range(150)]
    prompts = [(system, words.text(source, scale.count(1200))) for system in systems * 5]
    while True:
        for system, question in source.sample(prompts, len(prompts)):

            async def session(load: Load, system: str = system, question: str = question) -> None:
                await load.ask([message("system", system), message("user", question)], 1000)

            yield session


async def chat(scale: Scale, words: Words, source: random.Random) -> AsyncIterator[Session]:
    systems = [words.text(source, scale.count(1500)) for _ in range(20)]

    async def session(load: Load) -> None:
        messages = [message("system", source.choice(systems))]
        for _ in range(source.randint(2, 6)):
            messages.append(message("user", words.text(source, scale.count(300))))
            call = await load.ask(messages, 250)
            messages.append(message("assistant", call.text))
            await load.sleep(source.expovariate(1 / 10))

    while True:
        yield session


async def agent(scale: Scale, words: Words, source: random.Random) -> AsyncIterator[Session]:
    systems = [words.text(source, scale.count(4000)) for _ in range(10)]

    async def session(load: Load) -> None:
        messages = [message("system", source.choice(systems))]
        messages.append(message("user", words.text(source, scale.count(400))))
        for _ in range(source.randint(4, 12)):
            call = await load.ask(messages, 80)
            messages.append(message("assistant", call.text))
            await load.sleep(source.expovariate(1))
            messages.append(message("tool", words.text(source, scale.count(800))))

    while True:
        yield session


WORKS = (
    Work("capacity", capacity, {"below": 8, "knee": 25, "past": 45}, 15),
    Work("chat", chat, {"below": 4, "knee": 12, "past": 20}, 6),
    Work("agent", agent, {"below": 2, "knee": 6, "past": 10}, 3),
)


async def run_stage(
    load: Load, arrivals: AsyncIterator[Session], rate: float, real_seconds: float, router_pid: int
) -> Stage:
    """Arrivals for that time; then what runs may give its first token for half as long."""
    scale, source = load.scale, random.Random(7)
    load.stage = stage = Stage()
    begin, busy, router = time.monotonic(), busy_seconds(), cpu_ns(router_pid)
    due, end = begin, begin + real_seconds / scale.speed
    while (due := due + source.expovariate(rate * scale.speed)) < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        load.start((await anext(arrivals))(load))
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    wall = time.monotonic() - begin
    stage.seconds, tokens = wall, stage.tokens
    stage.machine = (busy_seconds() - busy) / wall / (os.cpu_count() or 1)
    stage.router = (cpu_ns(router_pid) - router) / 1e9 / wall
    measured = list(stage.calls)
    for _ in range(100):
        if all(call.first for call in measured):
            break
        await asyncio.sleep(wall / 200)
    now = time.monotonic()
    stage.unfinished = sum(not call.first for call in measured)
    for call in measured:
        call.first = call.first or now  # no less than this
    stage.calls, stage.tokens = measured, tokens
    return stage


def busy_seconds() -> float:
    """Of all cores since the machine started."""
    user, nice, system, *_ = (int(part) for part in _first_line("/proc/stat").split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _first_line(path: str) -> str:
    return Path(path).read_text().partition("\n")[0]


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    policies: list[str]
    works: list[str]
    stages: list[str]
    scale: Scale
    stage_seconds: float
    warmup_seconds: float
    save: bool


async def measure(work: Work, port: int, pid: int, words: Words, options: Options) -> list[Stage]:
    load = Load(port, options.scale)
    arrivals = work.sessions(options.scale, words, random.Random(3))
    await run_stage(load, arrivals, work.warmup_rate, options.warmup_seconds, pid)
    stages = [
        await run_stage(load, arrivals, work.rates[name], options.stage_seconds, pid)
        for name in options.stages
    ]
    for task in list(load.running):
        task.cancel()
    await asyncio.gather(*load.running, return_exceptions=True)
    return stages


def run_policy(
    folder: Path, policy: str, work: Work, words: Words, model: Path, options: Options
) -> list[Stage]:
    """A fresh fleet, a router, and every stage."""
    folder.mkdir()
    with sim_fleet(folder, model, options.scale, replicas=REPLICAS, kv_tokens=KV_TOKENS) as engines:
        config, port = folder / "fleet.json", free_port()
        config.write_text(json.dumps(_discovery(engines, KV_AWARE.get(policy, True))))
        name = "kv_aware" if policy in KV_AWARE else policy
        command, environment = router_command(config, port, "--policy", name)
        environment["KVASIR_FLEET_SECRET"] = SECRET
        cpus = os.sched_getaffinity(0)
        with process(*command, cpus=cpus, environment=environment) as router:
            wait_for(
                f"http://127.0.0.1:{port}/ready",
                within=30,
                process_alive=lambda: router.poll() is None,
            )
            return uvloop.run(measure(work, port, router.pid, words, options))


def _discovery(engines: Sequence[Engine], with_events: bool) -> dict[str, Any]:
    replicas = [engine.entry(i, with_events) for i, engine in enumerate(engines)]
    return {"models": [{"name": "bench", "replicas": replicas}]}


@dataclass(frozen=True)
class Result:
    """One stage in real units."""

    output: float
    """Tokens a second."""
    ttft: dict[str, float]
    stage: Stage

    @classmethod
    def of(cls, stage: Stage, scale: Scale) -> Result:
        waits = sorted((call.first - call.started) * scale.speed for call in stage.calls)
        cuts = statistics.quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else [0.0]
        at = {"p50": cuts[len(cuts) // 2], "p90": cuts[-10], "p99": cuts[-1]} if waits else {}
        output = stage.tokens * scale.tokens / stage.seconds / scale.speed
        return cls(output, at, stage)

    def row(self) -> list[str]:
        stage = self.stage
        return [
            f"{self.output:,.0f}",
            *(f"{self.ttft[name]:.2f}" for name in ("p50", "p90", "p99")),
            str(len(stage.calls)),
            str(stage.unfinished),
            str(stage.lost),
            f"{stage.machine:.0%}",
            f"{stage.router:.0%}",
        ]


COLUMNS = ["policy", "stage", "rate", "output tokens/s", "TTFT p50 s", "p90", "p99", "requests"]
COLUMNS += ["without first token", "lost", "machine busy", "router's core"]


def run(options: Options, folder: Path) -> None:
    words = Words(options.scale)
    model = folder / "model"
    words.write_model(model, max_tokens=32_768)
    results: dict[tuple[str, str, str], Result] = {}
    tables = []
    for work in (work for work in WORKS if work.name in options.works):
        rows = []
        for policy in options.policies:
            place = folder / f"{work.name}-{policy}"
            stages = run_policy(place, policy, work, words, model, options)
            for name, stage in zip(options.stages, stages, strict=True):
                result = results[work.name, policy, name] = Result.of(stage, options.scale)
                rows.append([policy, name, f"{work.rates[name]:g}/s", *result.row()])
                print(work.name, *rows[-1], sep="  ", flush=True)
        tables.append(Table(work.name, COLUMNS, rows))
    publish(results, tables, options)


def publish(
    results: dict[tuple[str, str, str], Result], tables: list[Table], options: Options
) -> None:
    figures = []
    for work in options.works:
        knee = {name: results.get((work, name, "knee")) for name in options.policies}
        base, exact, near = (knee.get(name) for name in ("round_robin", "exact", "approximate"))
        goal = {"capacity": (">= 1.9", "<= 0.033")}.get(work, ("", ""))
        for name, result in (("exact", exact), ("approximate", near)):
            if base and result and base.output and base.ttft:
                ratio = result.output / base.output
                figures.append(Figure(f"{work}, knee: output of {name} / round_robin", "", [ratio]))
                wait = result.ttft["p90"] / max(base.ttft["p90"], 1e-9)
                figures.append(
                    Figure(f"{work}, knee: TTFT p90 of {name} / round_robin", "", [wait], digits=3)
                )
                if name == "exact":
                    figures[-2:] = [
                        Figure(figures[-2].name, "", [ratio], goal[0]),
                        Figure(figures[-1].name, "", [wait], goal[1], digits=3),
                    ]
        if exact and near and exact.output:
            share = near.output / exact.output
            figures.append(
                Figure(f"{work}, knee: output of approximate / exact", "", [share], ">= 0.9")
            )
    scale = options.scale
    Report(
        name="router_benefit",
        title="What the choice of a replica is worth",
        work=(
            f"{REPLICAS} simulated engines (as llm-d's pods, {KV_TOKENS:,} tokens of KV cache "
            f"each) behind one router; one simulated token stands for {scale.tokens}, clocks "
            f"{scale.speed:g} times as fast, stages of {options.stage_seconds:g} s; figures in "
            "real tokens and seconds. A request without a first token when its stage and half as "
            "long again are over counts with that time."
        ),
        figures=figures,
        tables=tables,
        packages=("uvloop", "msgspec"),
        folder="",
    ).publish(save=options.save)


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policies", default="round_robin,least_load,approximate,exact")
    parser.add_argument("--works", default="capacity,chat,agent")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--scale", type=int, default=4, help="real tokens a simulated one is")
    parser.add_argument("--speed", type=float, default=1.0, help="of all clocks")
    parser.add_argument("--stage-seconds", type=float, default=40.0, help="real seconds")
    parser.add_argument("--warmup-seconds", type=float, default=50.0, help="real seconds")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    warn_if_busy()
    options = Options(
        policies=given.policies.split(","),
        works=given.works.split(","),
        stages=given.stages.split(","),
        scale=Scale(given.scale, given.speed),
        stage_seconds=given.stage_seconds,
        warmup_seconds=given.warmup_seconds,
        save=given.save,
    )
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
