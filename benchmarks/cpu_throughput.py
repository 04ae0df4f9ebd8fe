"""Output tokens a second on the CPU, beside Hugging Face's `generate`.

    python benchmarks/cpu_throughput.py [--requests 256] [--repeat 5] [--threads N] [--save]

The tiny model, greedy, float32; output lengths are log-uniform in 8..1024 with a fixed seed and end
tokens are ignored. Kvasir takes all requests at once through 64 slots; `generate` takes them in
batches of 64 in order of arrival, padded on the left, each batch running to its longest output.
Both have the same number of threads, each run is a process of its own, and the two take turns, so
that what else the machine does strikes both; CPU time is printed beside, which it hardly touches
with one thread. Finished runs are kept in the system's temporary
directory: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import TINY_MODEL, Figure, Report, Table, warn_if_busy

SLOTS = 64
SHORTEST, LONGEST = 8, 1024
PROMPT_TOKENS = (32, 256)
TRIED_TOKENS = 48
"""Output of the batch that decides which attention `generate` runs with."""
SAMPLED_EVERY = 8
"""Steps between two looks at the KV cache."""


@dataclass(frozen=True)
class Workload:
    """Prompts and output lengths."""

    prompts: list[list[int]]
    lengths: list[int]


def make_workload(requests: int) -> Workload:
    """The same for every run and engine."""
    draw = random.Random(0)
    prompts = [
        [draw.randrange(3, 1700) for _ in range(draw.randint(*PROMPT_TOKENS))]
        for _ in range(requests)
    ]
    low, high = math.log(SHORTEST), math.log(LONGEST)
    return Workload(prompts, [round(math.exp(draw.uniform(low, high))) for _ in range(requests)])


class Stopwatch:
    """Wall and CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._began = (time.monotonic(), time.process_time())

    def read(self) -> dict[str, float]:
        """`seconds` and `cpu_seconds`."""
        wall, cpu = self._began
        return {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}


# -- the engines, each in a process of its own ----------------------------------------------------


def run_kvasir(work: Workload) -> dict[str, Any]:
    """Seconds and steps of the offline engine."""
    from kvasir_engine import LLM, SamplingParams

    llm = LLM("builtin://kvasir-tiny", device="cpu", dtype="float32", max_num_seqs=SLOTS)
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        for length in work.lengths
    ]
    llm.generate(work.prompts[:4], params[0], use_tqdm=False)
    llm.reset_prefix_cache()
    steps = llm._core.scheduler.counters.steps
    clock = Stopwatch()
    outputs = llm.generate(work.prompts, params, use_tqdm=False)
    spent = clock.read()
    if [len(output.outputs[0].token_ids) for output in outputs] != work.lengths:
        raise AssertionError("a request ended early.")
    return {**spent, "steps": llm._core.scheduler.counters.steps - steps}


def run_hf(work: Workload) -> dict[str, Any]:
    """Seconds and steps of `generate`, with the attention that was faster in a short trial."""
    import torch
    from transformers import AutoModelForCausalLM

    def load(attention: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(
            TINY_MODEL, dtype=torch.float32, attn_implementation=attention
        )
        model.generation_config.eos_token_id = None
        return model

    def generate(model: Any, first: int, most: int) -> int:
        prompts, lengths = work.prompts[first : first + SLOTS], work.lengths[first : first + SLOTS]
        width, steps = max(map(len, prompts)), min(max(lengths), most)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=steps, do_sample=False, pad_token_id=0
        )
        if made.shape[1] != width + steps:
            raise AssertionError("a batch ended early.")
        return steps

    trials = {}
    for attention in ("sdpa", "eager"):
        model = load(attention)
        generate(model, 0, 4)
        began = time.monotonic()
        generate(model, 0, TRIED_TOKENS)
        trials[attention] = time.monotonic() - began
    attention = min(trials, key=trials.__getitem__)
    model = load(attention)
    generate(model, 0, 4)
    clock = Stopwatch()
    steps = sum(generate(model, first, LONGEST) for first in range(0, len(work.prompts), SLOTS))
    return {**clock.read(), "steps": steps, "attention": attention}


def measure_waste(work: Workload) -> dict[str, Any]:
    """KV allocated beyond what is used, averaged over steps.

    The scheduler decides this, not the device, so the simulated runner takes the same requests.
    """
    from kvasir_engine.core.build import build_core
    from kvasir_engine.request import EngineRequest
    from kvasir_engine.sampling_params import SamplingParams
    from kvasir_engine.settings import make_settings

    settings = make_settings(str(TINY_MODEL), device="sim", max_num_seqs=SLOTS)
    core = build_core(settings, TINY_MODEL)
    scheduler = core.scheduler
    for handle, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True)):
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        scheduler.add(EngineRequest(str(handle), handle, prompt, params))
    shares, used, steps = [], [], 0
    while not core.loop.idle:
        core.loop.step()
        steps += 1
        rows = scheduler.rows
        if steps % SAMPLED_EVERY == 0 and rows.owned.any():
            held = scheduler.kv.pools[0].num_referenced * scheduler.kv.block_size
            filled = int(rows.computed[rows.owned].sum())
            shares.append((held - filled) / held)
            used.append(filled / int(rows.owned.sum()))
    return {"waste": sum(shares) / len(shares), "running_tokens": sum(used) / len(used)}


RUNS = {"kvasir": run_kvasir, "hf": run_hf, "waste": measure_waste}


# -- taking turns ---------------------------------------------------------------------------------


def measure(kind: str, requests: int, threads: int) -> dict[str, Any]:
    """Return the figures of one run, made in a process of its own."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, __file__, "--run", kind, "--requests", str(requests)]
    made = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return result


def take_turns(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """All runs, kept in a file as they end."""
    name = f"kvasir-cpu-throughput-{os.getuid()}-{options.requests}-{options.threads}.json"
    kept = Path(tempfile.gettempdir()) / name
    runs = json.loads(kept.read_text()) if kept.exists() else {"kvasir": [], "hf": []}
    for turn in range(options.repeat):
        for kind in ("kvasir", "hf"):
            if len(runs[kind]) <= turn:
                runs[kind].append(measure(kind, options.requests, options.threads))
                print(f"run {turn + 1} {kind}: {runs[kind][-1]}", file=sys.stderr)
                kept.write_text(json.dumps(runs))
    kept.unlink(missing_ok=True)
    return {kind: made[: options.repeat] for kind, made in runs.items()}


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cpu/")
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = make_workload(options.requests)
    if options.run:
        print(json.dumps(RUNS[options.run](work)))
        return
    warn_if_busy()
    waste = measure("waste", options.requests, 1)
    runs = take_turns(options)
    publish(options, work, runs, waste)


def publish(
    options: argparse.Namespace,
    work: Workload,
    runs: dict[str, list[dict[str, Any]]],
    waste: dict[str, Any],
) -> None:
    """The report of all runs."""
    tokens = sum(work.lengths)
    rates = {kind: [tokens / run["seconds"] for run in made] for kind, made in runs.items()}
    ratios = [ours / theirs for ours, theirs in zip(rates["kvasir"], rates["hf"], strict=True)]
    pairs = zip(runs["kvasir"], runs["hf"], strict=True)
    cpu = [theirs["cpu_seconds"] / ours["cpu_seconds"] for ours, theirs in pairs]
    lengths = [len(p) + n for p, n in zip(work.prompts, work.lengths, strict=True)]
    rows = [
        [name, f"{made[0]['steps']:,}", f"{1e3 * made[0]['seconds'] / made[0]['steps']:.1f}"]
        for name, made in (("Kvasir", runs["kvasir"]), ("generate", runs["hf"]))
    ]
    report = Report(
        "cpu_throughput",
        "Throughput on the CPU",
        f"The tiny model in float32: {options.requests} requests of {tokens:,} output tokens "
        f"(log-uniform in {SHORTEST}..{LONGEST}) through {SLOTS} slots, {options.threads} threads; "
        f"beside Hugging Face `generate` in batches of {SLOTS} with "
        f"{runs['hf'][0]['attention']} attention.",
        [
            Figure("output tokens/s, of generate's", "times", ratios, ">= 2"),
            Figure("output tokens per CPU second, of generate's", "times", cpu),
            Figure("Kvasir, output tokens/s", "", rates["kvasir"], "", 0),
            Figure("generate, output tokens/s", "", rates["hf"], "", 0),
            Figure("KV allocated but unused", "%", [100 * waste["waste"]], "<= 4"),
            Figure("mean tokens of a whole sequence", "", [sum(lengths) / len(lengths)], "", 0),
            Figure("mean tokens of a running sequence", "", [waste["running_tokens"]], "", 0),
        ],
        [Table("Steps", ["engine", "steps", "ms a step in the first run"], rows)],
        ("torch", "transformers", "numpy"),
    )
    report.publish(save=options.save)


if __name__ == "__main__":
    main()
