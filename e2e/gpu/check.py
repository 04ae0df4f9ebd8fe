"""The engine's answers on a GPU, judged by transformers; everything is asserted to have happened.

    python e2e/gpu/check.py [--models olmo2,...] [--out docs/gpu_check.md] [--results F.json]
        [--jobs 6]

For each architecture a small random model in fp32 and bf16: greedy tokens of the decode graphs are
the ones transformers finds likeliest; launched one by one, without overlap, preempted, with
shared prefixes attended to once, and with keys divided by length they are the same. "The same" is
identical or, where two runs part, two candidates whose scores transformers (fp32) finds closer than
the bound: 1e-3 in fp32, and in bf16 the largest difference that bf16 makes to transformers' own
scores of that sequence. What the kernel for Hopper attended to is named, and has to be all that
fits it. Then the shipped model's tasks, answered on the GPU. One script, several models at once,
each in a process of its own (most of the time is kernels that compile); writes each row as it is
known, and exits 1 when one fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks")]

import precompiled  # noqa: E402
from common import commit  # noqa: E402
from judging import Judge, Row, Tokens  # noqa: E402

from kvasir_engine.attention import triton_backend  # noqa: E402
from kvasir_engine.attention.hopper import paged_attention  # noqa: E402
from kvasir_engine.attention.triton.decode_tuning import (  # noqa: E402
    DecodeTuning,
    split_kv_tuning_for,
)
from kvasir_engine.core.build import build_core  # noqa: E402
from kvasir_engine.models.decoder import DecoderForCausalLM  # noqa: E402
from kvasir_engine.request import EngineRequest  # noqa: E402
from kvasir_engine.runner import batch, prefix_groups  # noqa: E402
from kvasir_engine.runner.graphs import full as decode_graphs  # noqa: E402
from kvasir_engine.sampling_params import SamplingParams  # noqa: E402
from kvasir_engine.settings import make_settings  # noqa: E402

WIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_7_of_64": (
        "qwen2",
        {"hidden_size": 896, "num_attention_heads": 14, "initializer_range": 0.04},
    ),
    "qwen3_4_of_128": (
        "qwen3",
        {"hidden_size": 256, "head_dim": 128, "num_attention_heads": 8, "initializer_range": 0.06},
    ),
    "gemma3_2_of_256": (
        "gemma3_text",
        {
            "hidden_size": 256,
            "head_dim": 256,
            "num_hidden_layers": 7,
            "sliding_window": 150,
            "initializer_range": 0.06,
        },
    ),
}
"""Models beside those of the tests, whose heads are small: query heads per KV head and
head size."""
WIDE_SCALE = 4
"""Scale of their prompts, so that they have several tiles of keys."""
ARCHITECTURES = (
    *WIDE,
    *("llama2", "llama3", "llama31", "qwen2", "qwen3", "qwen3_one_kv_head", "mistral"),
    *("gemma2", "gemma3", "phi3", "phi3_long", "mixtral", "qwen3_moe"),
    *("olmo2", "granite", "exaone4", "smollm3", "internlm3", "stablelm", "gpt_oss"),
    "starcoder2",
)
NEW_TOKENS = 24
COMMON = 40
"""Leading tokens that half of the prompts share."""
BLOCKS = 512
"""KV cache blocks, more than the work needs: several engines share the GPU."""
FEW_BLOCKS = {1: 20, WIDE_SCALE: 34}
"""KV cache blocks by the prompts' scale: so few that decodes run out of them."""
TASKS = ("sort", "recall", "copy", "reverse", "add", "extract")
LONE = "one by one"
DIVIDED = "divided by length"
HOPPER = "by the kernel for Hopper"


def models() -> Any:
    """The random models of the tests."""
    path = ROOT / "tests/support/engines/random_models.py"
    spec = importlib.util.spec_from_file_location("models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.MODELS.update(WIDE)
    # Some versions of transformers clamp at 7, whatever the config says.
    kind, fields = module.MODELS["gpt_oss"]
    module.MODELS["gpt_oss"] = kind, {**fields, "swiglu_limit": 7.0}
    return module


def prompts(scale: int) -> Tokens:
    """Return prompts of mixed lengths, half with a shared prefix of more than two blocks."""
    draw = random.Random(0)

    def some(count: int) -> list[int]:
        return [draw.randrange(160) for _ in range(count)]

    common = some(COMMON * scale)
    alone = [some((n - 1) * scale + 1) for n in (3, 17, 33, 61)]
    return alone + [common + some((n - 1) * scale + 1) for n in (1, 9, 20, 30)]


class Engine:
    """A core in this process."""

    def __init__(self, model_dir: Path, dtype: str, **settings: Any) -> None:
        options = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 256}
        options["num_blocks"] = BLOCKS
        given = {**options, **settings}
        self.settings = make_settings(str(model_dir), dtype=dtype, **given)
        self.core = build_core(self.settings, model_dir)

    def greedy(self, given: Tokens) -> Tokens:
        """Each prompt's tokens; the first prompt of a common beginning comes a step earlier."""
        found: dict[int, list[int]] = {}
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        for i, ids in enumerate(given):
            found[i] = []
            self.core.scheduler.add(EngineRequest(f"r{i}", i, ids, params))
            if i == len(given) // 2:
                self._step(found)
                self._step(found)
        while not self.core.loop.idle:
            self._step(found)
        self.core.loop.check_idle()
        return [found[i] for i in range(len(given))]

    def _step(self, found: dict[int, list[int]]) -> None:
        news = self.core.loop.step()
        if news is None:
            return
        for handle, token in zip(news.handles.tolist(), news.tokens.tolist(), strict=True):
            found[handle].append(token)
        for _, delta in news.deltas:
            found[delta.handle].extend(delta.token_ids)

    def close(self) -> None:
        """Free the device."""
        self.core.built_runner.runner.close()


def compare_lone(row: Row, given: Tokens, judge: Judge, want: Tokens, engine: Engine) -> None:
    """Prompts that come when no other is there; what the engine knows of them is forgotten."""
    runner: Any = engine.core.loop.runner
    before = runner.graphs.steps["prefill"]
    engine.core.scheduler.kv.reset_cache()
    found = [engine.greedy([prompt])[0] for prompt in given]
    happened = runner.graphs.steps["prefill"] - before >= len(given)

    def wrong(i: int) -> str | None:
        said: str | None = judge.differ(given[i], want[i], found[i])
        return said

    row.compare(LONE, given, wrong, happened)


def note_hopper(row: Row, due: list[str]) -> None:
    """Note what the kernel for Hopper ran for; a fault where that is not `due`."""
    shared = {key[0].shared for key in paged_attention.compiled.kinds()}
    kinds = ["prefixes" if each else "prompts" for each in sorted(shared)]
    if kinds != due:
        row.faults.append(f"{row.name}: the kernel for Hopper saw {kinds}, not {due}")
    row.outcome[HOPPER] = " and ".join(kinds) or "-"


def check_model(name: str, dtype: str, model_dir: Path) -> Row:
    """All runs of one model in one type."""
    scale = WIDE_SCALE if name in WIDE else 1
    given, judge, row = prompts(scale), Judge(model_dir, dtype), Row(f"{name} {dtype}")
    size = {"max_model_len": 128 * scale}
    precompiled.compiled_here.clear()
    graphs = Engine(model_dir, dtype, **size)
    runner: Any = graphs.core.loop.runner
    if isinstance(runner.model, DecoderForCausalLM):
        precompiled.note_ahead(row, graphs.settings, model_dir)
    else:
        row.outcome[precompiled.COLUMN] = "transformers' code"
    want = graphs.greedy(given)
    used = min(runner.graphs.steps["full"], runner.graphs.steps["piecewise"]) > 0
    row.compare("transformers", given, lambda i: judge.unlikely(given[i], want[i]), used)
    compare_lone(row, given, judge, want, graphs)
    graphs.close()

    def same(column: str, found: Tokens, happened: bool) -> None:
        row.compare(column, given, lambda i: judge.differ(given[i], want[i], found[i]), happened)

    for column, settings, happened in VARIANTS:
        engine = Engine(model_dir, dtype, **size, **settings(scale))
        found = engine.greedy(given)
        same(column, found, happened(engine))
        engine.close()
    engine = Engine(model_dir, dtype, **size)
    sharing: Any = engine.core.loop.runner
    if sharing.shares_prefixes:
        found = engine.greedy(given)
        same("prefixes shared", found, sharing.graphs.steps["shared_prefix"] > 0)
    else:
        row.outcome["prefixes shared"] = "windows"
    check_divided(row, model_dir, dtype, size, given, same)
    fitting = dtype == "bfloat16" and sharing.model.attention_specs[0].head_dim % 8 == 0
    due = ["prompts", "prefixes"][: fitting * (1 + sharing.shares_prefixes)]
    note_hopper(row, due)
    engine.close()
    return row


def check_divided(
    row: Row,
    model_dir: Path,
    dtype: str,
    size: dict[str, int],
    given: Tokens,
    same: Callable[[str, Tokens, bool], None],
) -> None:
    """Decodes whose keys are divided by length, as if contexts differed much more than they do."""
    with (
        patch.object(decode_graphs, "needs_split_kv", bool_of),
        patch.object(batch, "needs_split_kv", bool_of),
        patch.object(prefix_groups, "LAUNCH_COST_BYTES", 1 << 40),
        patch.object(triton_backend, "split_kv_tuning_for", small_parts),
    ):
        engine = Engine(model_dir, dtype, **size)
        runner: Any = engine.core.loop.runner
        found = engine.greedy(given)
    if all(spec.window is not None for spec in runner.groups):
        row.outcome[DIVIDED] = "windows"
    else:
        steps = runner.graphs.steps
        same(DIVIDED, found, steps["split_kv"] > 0 and steps["shared_prefix"] == 0)
    engine.close()


def small_parts(padded_dim: int) -> DecodeTuning:
    """Few keys a part: these prompts are short."""
    return replace(split_kv_tuning_for(padded_dim), keys=32, min_keys=32)


def bool_of(lengths: Any) -> bool:
    """Return True if there are any lengths."""
    return len(lengths) > 0


Settings = Callable[[int], dict[str, Any]]
"""Settings of an engine, by its prompts' scale."""
VARIANTS: tuple[tuple[str, Settings, Callable[[Any], bool]], ...] = (
    (
        "eager",
        lambda _: {"enforce_eager": True},
        lambda e: e.core.loop.runner.graphs.steps["full"] == 0,
    ),
    ("no overlap", lambda _: {"overlap": False}, lambda e: e.core.scheduler.counters.steps > 0),
    (
        "preempted",
        lambda scale: {"num_blocks": FEW_BLOCKS[scale]},
        lambda e: e.core.scheduler.counters.preemptions > 0,
    ),
)


def check_tiny() -> Iterator[tuple[str, int, int]]:
    """(task, right answers, samples) of the shipped model."""
    from benchmarks.tiny_model.evaluate import Judge as Card
    from benchmarks.tiny_model.evaluate import Row as Task

    from kvasir_engine.llm import LLM

    tiny = ROOT / "engine/kvasir_engine/assets/tiny"
    card = Card(tiny)
    llm = LLM(str(tiny), max_num_seqs=64)
    params = SamplingParams(temperature=0.0, max_tokens=96)
    for name in TASKS:
        samples = Task(name, items=8 if name == "sort" else 12).samples(200, card)
        turns = [[{"role": "user", "content": sample.prompt}] for sample in samples]
        outputs = llm.chat(turns, params, use_tqdm=False)
        right = [
            output.outputs[0].text == sample.answer
            for output, sample in zip(outputs, samples, strict=True)
        ]
        yield name, sum(right), len(right)
    llm.close()


def check_one(work: tuple[str, str]) -> Row:
    """Check one architecture in one type, in a process of its own."""
    # However little there is to gain: these models are small.
    prefix_groups.LAUNCH_COST_BYTES = -(1 << 40)
    torch.set_num_threads(2)
    paged_attention.compiled.forget()
    precompiled.listen()
    name, dtype = work
    with tempfile.TemporaryDirectory() as directory:
        model_dir = Path(directory) / name
        models().save_hf_model(name, model_dir)
        return check_model(name, dtype, model_dir)


def main() -> None:
    """Print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default="", help="names, all without; then no tasks either")
    parser.add_argument("--results", type=Path, help="the rows as JSON")
    parser.add_argument("--jobs", type=int, default=6, help="models checked at once")
    options = parser.parse_args()
    names = options.models.split(",") if options.models else ARCHITECTURES
    if strange := sorted(set(names) - set(ARCHITECTURES)):
        parser.error(f"--models {', '.join(strange)}: not among {', '.join(ARCHITECTURES)}")
    lines = [
        "# The engine on a GPU against transformers",
        "",
        f"`python e2e/gpu/check.py`, commit {commit()}, {datetime.now(UTC):%Y-%m-%d}, "
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}.",
        "",
    ]
    faults: list[str] = []
    columns = [
        precompiled.COLUMN,
        "transformers",
        LONE,
        *(column for column, _, _ in VARIANTS),
        "prefixes shared",
        DIVIDED,
        HOPPER,
    ]
    lines += ["| model | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    totals: Counter[str] = Counter()

    rows: dict[str, Any] = {}

    def write() -> None:
        if options.results:
            made = {"commit": commit(), "gpu": torch.cuda.get_device_name(), "rows": rows}
            options.results.write_text(json.dumps({**made, "faults": faults}, indent=1) + "\n")
        if options.out:
            options.out.write_text("\n".join([*lines, *(f"- {fault}" for fault in faults)]) + "\n")

    works = [(name, dtype) for name in names for dtype in ("float32", "bfloat16")]
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as cache,
        patch.dict(os.environ, TRITON_CACHE_DIR=cache),
        ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool,
    ):
        for row in pool.map(check_one, works):
            lines.append(f"| {row.name} | " + " | ".join(row.outcome[c] for c in columns) + " |")
            print(lines[-1], *row.faults, sep="\n", flush=True)
            faults += row.faults
            rows[row.name] = dict(row.outcome)
            totals.update(row.outcome[column] for column in columns)
            write()
    lines += ["", "| task of the shipped model | right |", "|---|---|"]
    for task, right, count in () if options.models else check_tiny():
        lines.append(f"| {task} | {right} of {count} |")
        print(lines[-1], flush=True)
        if right < 0.97 * count:
            faults.append(f"{task}: {right} of {count} are right")
        write()
    print(dict(totals), "faults:", len(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
