"""Times beam searches, alone and beside a stream, with the core in this process or in its own.

    python benchmarks/beam_search.py --set device=sim --set num_blocks=2000

Prints a JSON line a case: milliseconds of one search (each run), and CPU milliseconds of a run.
`--set` takes any argument of `LLM`. Alternate two checkouts by PYTHONPATH to compare them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from kvasir_engine import LLM, AsyncLLM, BeamSearchParams, SamplingParams

MODEL = "builtin://kvasir-tiny"


def prompt(length: int) -> list[int]:
    """Token ids that do not repeat from one length to the next."""
    return [5 + (i * 7 + length) % 200 for i in range(length)]


def show(where: str, length: int, seconds: list[float], cpu: float) -> None:
    times = [round(each * 1e3, 2) for each in seconds]
    best, cpu_ms = min(times), round(cpu * 1e3 / len(times), 2)
    line = {"where": where, "prompt": length, "ms": times, "min_ms": best, "cpu_ms": cpu_ms}
    print(json.dumps(line), flush=True)


def in_process(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    llm = LLM(args.model, **settings)
    params = BeamSearchParams(beam_width=args.width, max_tokens=args.tokens, ignore_eos=True)
    for length in args.prompts:
        llm.beam_search([prompt(length)], params, use_tqdm=False)
        seconds, cpu = [], time.process_time()
        for _ in range(args.runs):
            begin = time.perf_counter()
            llm.beam_search([prompt(length)], params, use_tqdm=False)
            seconds.append(time.perf_counter() - begin)
        show("in process", length, seconds, time.process_time() - cpu)
    llm.close()


async def over_sockets(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    llm = await AsyncLLM.start(args.model, **settings)
    beams = SamplingParams(
        n=args.width, use_beam_search=True, max_tokens=args.tokens, ignore_eos=True
    )

    async def one(length: int) -> float:
        begin = time.perf_counter()
        async for _ in llm.generate(prompt(length), beams):
            pass
        return time.perf_counter() - begin

    async def stream() -> None:
        while True:
            async for _ in llm.generate([3], SamplingParams(max_tokens=1000, ignore_eos=True)):
                pass

    for length in args.prompts:
        await one(length)
        cpu = time.process_time()
        seconds = [await one(length) for _ in range(args.runs)]
        show("own process", length, seconds, time.process_time() - cpu)
        beside = asyncio.create_task(stream())
        await one(length)
        cpu = time.process_time()
        seconds = [await one(length) for _ in range(args.runs)]
        show("own process, beside a stream", length, seconds, time.process_time() - cpu)
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
    await llm.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=("in-process", "sockets"))
    args = parser.parse_args()
    settings: dict[str, Any] = {}
    for each in args.set:
        name, _, value = each.partition("=")
        settings[name] = int(value) if value.isdigit() else value
    if args.only != "sockets":
        in_process(args, settings)
    if args.only != "in-process":
        asyncio.run(over_sockets(args, settings))


if __name__ == "__main__":
    main()
