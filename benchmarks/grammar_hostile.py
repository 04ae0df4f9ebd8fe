"""Time between tokens of streams while hostile forms of outputs are asked for.

    python benchmarks/grammar_hostile.py [--save] [--rounds 4] [--streams 8]

The shipped model is served on the CPU. Streams without a form go on beside requests for each form
of tests/support/hostile_forms.py that is refused, as long alone, and beside those that are taken,
two requests at a time, in turns. The figure is the difference between the 99th percentiles of the
time between two events of a stream, by round; and the longest answer to a form that is refused. On
few cores the compilations, the API process and this program take theirs from the steps.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
from common import ROOT, Figure, Report, Table, free_port, wait_for
from tqdm import tqdm

sys.path.append(str(ROOT / "tests"))

from support.hostile_forms import BOUNDED, REFUSED

AT_ONCE = 2
MOST_TOKENS = 1500
FORM_TOKENS = 8
START_SECONDS = 120.0


@contextmanager
def served() -> Iterator[str]:
    """Start an engine and yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "kvasir", "serve", "builtin://kvasir-tiny"]
    command += ["--port", str(port), "--served-model-name", "tiny"]
    # One core computes, as if it were a device; the others are left to what stands beside it.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    silent = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=silent, stderr=silent, env=env) as engine:
        try:
            url = f"http://127.0.0.1:{port}"
            alive = lambda: engine.poll() is None  # noqa: E731
            wait_for(f"{url}/ready", within=START_SECONDS, process_alive=alive)
            yield url
        finally:
            engine.terminate()


async def stream(client: httpx.AsyncClient, seed: int, gaps: list[float]) -> None:
    """Run streams one after the other until cancelled, and note the seconds between events."""
    for number in itertools.count():
        body = {
            "model": "tiny",
            "prompt": "Once upon a time",
            "max_tokens": MOST_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "seed": 1000 * seed + number,
        }
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            last = 0.0
            async for _ in answer.aiter_raw():
                now = time.perf_counter()
                if last:
                    gaps.append(now - last)
                last = now


@asynccontextmanager
async def streams(client: httpx.AsyncClient, count: int) -> AsyncIterator[list[float]]:
    """Have so many streams run; yields their gaps."""
    gaps: list[float] = []
    tasks = [asyncio.create_task(stream(client, seed, gaps)) for seed in range(count)]
    await asyncio.sleep(1.0)  # They begin.
    gaps.clear()
    yield gaps
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ask(client: httpx.AsyncClient, form: dict[str, Any], number: int) -> tuple[int, float]:
    """Return the status of a request with a form, and its seconds."""
    # No answer is remembered: each round compiles anew.
    body = {"model": "tiny", "prompt": "Go:", "max_tokens": FORM_TOKENS}
    body["structured_outputs"] = form if number < 0 else _anew(form, number)
    begun = time.perf_counter()
    answer = await client.post("/v1/completions", json=body)
    return answer.status_code, time.perf_counter() - begun


def _anew(form: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a form that is as another, and compiled again."""
    [(kind, value)] = form.items()
    mark = {
        "regex": f"(|{number})",
        "grammar": f'\nr{number}x ::= "{number}"',
        "lark": "\n" * number,
    }
    return {kind: value + mark[kind]} if kind in mark else form


async def ask_all(
    client: httpx.AsyncClient, forms: dict[str, dict[str, Any]], number: int
) -> dict[str, tuple[int, float]]:
    """Ask for all forms, some at once."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> tuple[str, tuple[int, float]]:
        async with free:
            return name, await ask(client, forms[name], number)

    return dict(await asyncio.gather(*map(one, forms)))


def p99(gaps: list[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return sorted(gaps)[int(len(gaps) * 0.99)] * 1e3


async def measure(url: str, rounds: int, count: int) -> tuple[list[list[float]], dict[str, Any]]:
    """Return alone, beside refused forms and beside others, by round; the longest answer by
    form."""
    found: list[list[float]] = []
    slowest: dict[str, Any] = {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await ask_all(client, BOUNDED, -1)  # The libraries are loaded.
        for number in tqdm(range(rounds), desc="Rounds"):
            async with streams(client, count) as gaps:
                begun = time.perf_counter()
                answers = await ask_all(client, REFUSED, number)
                took = time.perf_counter() - begun
                beside = p99(gaps)
            async with streams(client, count) as gaps:
                await asyncio.sleep(took)
                alone = p99(gaps)
            async with streams(client, count) as gaps:
                answers |= await ask_all(client, BOUNDED, number)
                found.append([alone, beside, p99(gaps)])
            for name, (status, seconds) in answers.items():
                before = slowest.get(name, (status, 0.0))
                slowest[name] = (status, max(seconds, before[1]))
    return found, slowest


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--streams", type=int, default=8)
    options = parser.parse_args()
    with served() as url:
        found, slowest = asyncio.run(measure(url, options.rounds, options.streams))
    refused = [slowest[name][1] * 1e3 for name in REFUSED]
    wrong = [name for name in REFUSED if slowest[name][0] != 400]
    wrong += [name for name in BOUNDED if slowest[name][0] != 200]
    Report(
        "grammar_hostile",
        "Streams beside hostile forms of outputs",
        f"{options.streams} streams of the shipped model on the CPU, alone and beside requests for "
        f"{len(REFUSED)} forms that are refused and {len(BOUNDED)} that only look large.",
        [
            Figure("time between tokens, p99, alone", "ms", [each[0] for each in found]),
            Figure("beside forms that are refused", "ms", [each[1] for each in found]),
            Figure("difference", "ms", [each[1] - each[0] for each in found], "<= 5"),
            Figure("beside forms that are taken", "ms", [each[2] for each in found]),
            Figure("longest refusal", "ms", [max(refused)], "<= 1100", 0),
            Figure("forms with another status than expected", "", [len(wrong)], "<= 0", 0),
        ],
        [
            Table(
                "By form, the longest answer",
                ["form", "status", "ms"],
                [[name, str(status), f"{ms * 1e3:.0f}"] for name, (status, ms) in slowest.items()],
            )
        ],
        ("llguidance", "xgrammar"),
    ).publish(save=options.save)
    if wrong:
        sys.exit(f"another status than expected: {json.dumps(wrong)}")


if __name__ == "__main__":
    main()
