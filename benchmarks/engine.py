"""The engine on a GPU, in-process: token ids in, end tokens ignored, one warm-up of 8 requests.

    python benchmarks/engine.py --model DIR [--load-format dummy] [--works mixed256,decode,...]
        [--quantization fp8] [--kv-cache-dtype fp8] [--max-num-seqs 512]
        [--tensor-parallel-size 2] [--repeat 3] [--steps] [--out F.json]

mixed256: 256 requests of 100-1024 tokens in and out; big1000: 1000 requests, 128-1024 in, 64-512
out; decode: ms a token at 1,000 tokens of context for batches of 1, 8, 64, 256; prefill: 32
prompts of 4,096, one token out; ttft: one prompt of 4,096 and of 512, one token out; prefix: 256
requests of 4,096 shared and 64 own tokens, 64 out, after one request that has the prefix cached;
io: as many requests as run at once, of 1,000 in and out, and of 128 in, 2,048 out; sampling:
mixed256 with temperature alone, with top_k 50 and top_p 0.9, with all three penalties, and with
logprobs 5, in one run after the other; long: ms a token of 8 contexts of 100,000 tokens, and to the
only token of a prompt of 120,000 (with `--max-model-len 131072`). Temperature 0.6; 8,192 tokens a
step, 256 sequences or --max-num-seqs, 90 % of the memory, prefix cache on.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import Figure, Report, Table, hardware
from step_log import StepLog

from kvasir_engine.core.build import Core, build_core
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.settings import make_settings

Prompts = list[list[int]]
Figures = dict[str, dict[str, Any]]
"""Figures by name: the figure, then what belongs to it."""
Runs = dict[str, list[dict[str, Any]]]
"""Each run's figures, by name."""
SKIPPED = 4
"""Decodes that are not timed, after the last prompt's step."""
SAMPLING: dict[str, dict[str, Any]] = {
    "sampling_plain": {},
    "sampling_top_k_top_p": {"top_k": 50, "top_p": 0.9},
    "sampling_penalties": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
    },
    "sampling_logprobs": {"logprobs": 5},
}
"""mixed256's further parameters, by figure."""


def prompts(count: int, low: int, high: int, seed: int) -> Prompts:
    """Random token ids, `low` to `high` of them."""
    draw = random.Random(seed)
    return [
        [draw.randrange(100, 30000) for _ in range(draw.randint(low, high))] for _ in range(count)
    ]


class TooManyRowsError(Exception):
    """The rows of a batch do not fit into the KV cache together."""


class Engine:
    """A core in this process that is given batches of requests."""

    def __init__(self, core: Core, max_num_seqs: int = 256) -> None:
        self._core = core
        self.max_num_seqs = max_num_seqs
        self._next = 0
        self.steps = 0
        self.start_parts = core.built_runner.timings

    def generate(self, given: Prompts, lengths: list[int], **sampling: Any) -> float:
        """Seconds until the last request's last token; `sampling` are further parameters."""
        begin = time.perf_counter()
        self._add(given, lengths, **sampling)
        tokens = 0
        before = self._core.scheduler.counters.steps
        while not self._core.loop.idle:
            tokens += self._step()
        self.steps = self._core.scheduler.counters.steps - before
        if tokens != sum(lengths):
            raise AssertionError(f"{tokens} tokens came out, {sum(lengths)} were asked for.")
        return time.perf_counter() - begin

    def decode_ms(self, given: Prompts, steps: int) -> float:
        """Milliseconds of a step that decodes all of `given`: the mean of `steps` in a row, from
        a few after the last prompt's. The prefix cache is empty afterwards."""
        first = self._next
        # Those who come first decode beside the others' prompts.
        beside = sum(map(len, given)) // 1024
        self._add(given, [steps + 2 * SKIPPED + beside] * len(given))
        while self._step() < len(given):
            if self._core.loop.idle:
                raise TooManyRowsError(f"{len(given)} rows never decoded all at once.")
        all_of_them = [self._step() for _ in range(SKIPPED)]
        begin = time.perf_counter()
        all_of_them += [self._step() for _ in range(steps)]
        seconds = time.perf_counter() - begin
        if set(all_of_them) != {len(given)}:
            raise AssertionError("not every timed step was a decode of all rows.")
        for handle in range(first, self._next):
            self._core.loop.end(handle)
        while not self._core.loop.idle:
            self._core.loop.step()
        self.forget()
        return seconds / steps * 1e3

    def _add(self, given: Prompts, lengths: list[int], **sampling: Any) -> None:
        for ids, length in zip(given, lengths, strict=True):
            params = SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.6, **sampling)
            request = EngineRequest(f"bench-{self._next}", self._next, ids, params)
            self._core.scheduler.add(request)
            self._next += 1

    def _step(self) -> int:
        """Tokens of the next step that has any, 0 when nothing is left to do."""
        while not self._core.loop.idle:
            news = self._core.loop.step()
            if news is not None:
                tokens = len(news.tokens) + sum(len(delta.token_ids) for _, delta in news.deltas)
                if tokens:
                    return tokens
        return 0

    def forget(self) -> None:
        """An empty prefix cache."""
        self._core.scheduler.kv.reset_cache()


def mixed256(engine: Engine, **sampling: Any) -> Figures:
    """Output tokens a second."""
    draw = random.Random(1)
    lengths = [draw.randint(100, 1024) for _ in range(256)]
    return {"mixed256": _rate(engine, prompts(256, 100, 1024, 0), lengths, **sampling)}


def sampling(engine: Engine) -> Figures:
    """mixed256 by kind of sampling."""
    found = {}
    for name, parameters in SAMPLING.items():
        engine.forget()
        found[name] = mixed256(engine, **parameters)["mixed256"]
    return found


def big1000(engine: Engine) -> dict[str, Any]:
    """Output tokens a second, more requests than rows."""
    draw = random.Random(6)
    lengths = [draw.randint(64, 512) for _ in range(1000)]
    return {"big1000": _rate(engine, prompts(1000, 128, 1024, 5), lengths)}


def io(engine: Engine) -> Figures:
    """Output tokens a second of as many equal requests as run at once."""
    count = engine.max_num_seqs
    long_in = _rate(engine, prompts(count, 1000, 1000, 7), [1000] * count)
    engine.forget()
    long_out = _rate(engine, prompts(count, 128, 128, 8), [2048] * count)
    return {"io_1000_1000": long_in, "io_128_2048": long_out}


def _rate(engine: Engine, given: Prompts, lengths: list[int], **sampling: Any) -> dict[str, Any]:
    seconds = engine.generate(given, lengths, **sampling)
    return {"out_tok_s": round(sum(lengths) / seconds, 1), "steps": engine.steps}


def decode(engine: Engine) -> Figures:
    """The mean of 256 steps; a batch whose KV does not fit is told and left out."""
    found = {}
    for batch in (1, 8, 64, 256):
        given = [prompts(batch, 1000, 1000, 10 + repeat) for repeat in range(2)]
        try:
            runs = [engine.decode_ms(each, 256) for each in given]
        except TooManyRowsError as error:
            print(f"decode_bs{batch} left out: {error}", flush=True)
            break
        found[f"decode_bs{batch}"] = {"tpot_ms": round(min(runs), 3)}
    return found


def prefill(engine: Engine) -> Figures:
    """Prompt tokens a second."""
    seconds = engine.generate(prompts(32, 4096, 4096, 2), [1] * 32)
    return {"prefill_4096x32": {"tok_s": round(32 * 4096 / seconds, 1)}}


def ttft(engine: Engine) -> Figures:
    """Milliseconds to the only token, median of five."""
    found = {}
    for length in (4096, 512):
        runs = []
        for i in range(5):
            engine.forget()
            runs.append(engine.generate(prompts(1, length, length, 20 + i), [1]))
        found[f"prefill_{length}x1"] = {"ttft_ms": round(statistics.median(runs) * 1e3, 2)}
    return found


def prefix(engine: Engine) -> Figures:
    """Output tokens a second of requests with a cached prefix in common."""
    shared = prompts(1, 4096, 4096, 3)[0]
    engine.generate([shared], [1])
    own = prompts(256, 64, 64, 4)
    given = [shared + each for each in own]
    return {"prefix4096x256": _rate(engine, given, [64] * 256)}


def long(engine: Engine) -> Figures:
    """Milliseconds of a decode step and of a prompt with many tokens."""
    decode = engine.decode_ms(prompts(8, 100_000, 100_000, 30), 64)
    runs = []
    for i in range(2):
        engine.forget()
        runs.append(engine.generate(prompts(1, 120_000, 120_000, 31 + i), [1]))
    return {
        "decode_8x100000": {"tpot_ms": round(decode, 3)},
        "prefill_120000x1": {"ttft_ms": round(min(runs) * 1e3, 1)},
    }


WORKLOADS: dict[str, Callable[[Engine], Figures]] = {
    "mixed256": mixed256,
    "big1000": big1000,
    "decode": decode,
    "prefill": prefill,
    "ttft": ttft,
    "prefix": prefix,
    "io": io,
    "sampling": sampling,
    "long": long,
}
EVERY_DAY = [name for name in WORKLOADS if name not in ("sampling", "long")]
MODELS = Path(__file__).parent / "models"
COLUMNS = ["figure", "here", "modelled limit", "vLLM 0.24.0"]
UNITS = {"out_tok_s": "tokens/s", "tok_s": "tokens/s", "tpot_ms": "ms", "ttft_ms": "ms"}


def medians(runs: Runs) -> Figures:
    """Return the median of each figure; what belongs to it is the last run's."""
    found = {}
    for name, each in runs.items():
        key = next(iter(each[-1]))
        found[name] = {**each[-1], key: statistics.median(run[key] for run in each)}
    return found


WEIGHTS = {
    "auto": "bf16",
    "fp8": "fp8 weights",
    "awq": "int4 weights in groups of 128",
}
OVERRIDES = {
    "awq": {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
}
"""So that random weights have the format; a checkpoint has it by itself."""


def kind_of(options: argparse.Namespace) -> str:
    """Return how the model's numbers are stored, and on how many GPUs."""
    weights, cache = options.quantization, options.kv_cache_dtype
    kind = WEIGHTS[weights]
    config = json.loads((Path(options.model) / "config.json").read_text())
    if config.get("quantization_config", {}).get("quant_method") == "mxfp4":
        kind = "mxfp4 experts"
    if (weights, cache) != ("auto", "auto"):
        kind += f", {'bf16' if cache == 'auto' else cache} KV cache"
    ranks = options.tensor_parallel_size
    return kind if ranks == 1 else f"{kind}, {ranks} GPUs"


def report(measured: str, gpu: str, runs: Runs, further: Iterable[Table]) -> Report:
    """Return the report of the runs so far, on an H200 beside vLLM's figures, goals and the limit
    of a perfect scheduler; `measured`: model and kind."""
    floors = json.loads((MODELS / "floors.json").read_text())
    known = floors["models"].get(measured, {}) if "H200" in gpu else {}
    source = "{vllm}. The modelled limit is {modelled_limit}.".format(**floors["source"])
    rows, table = [], []
    for name, found in medians(runs).items():
        (key, value), *_ = found.items()
        floor = known.get(name, {})
        digits = 2 if key.endswith("ms") else 0
        each = [run[key] for run in runs[name]]
        rows.append(Figure(name, UNITS[key], each, floor.get("goal", ""), digits))
        others = [str(floor.get(whose, "")) for whose in ("modelled_limit", "vllm")]
        table.append([name, f"{value:,.{digits}f}", *others])
    return Report(
        name="engine",
        title=f"The engine on a GPU: {measured}",
        work=" ".join(__doc__.split("--out F.json]")[1].split()),
        figures=rows,
        tables=[Table("Beside others", COLUMNS, table, source), *further],
        packages=("torch", "triton"),
    )


def main() -> None:
    """Print each work's figures as they come, and save them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="directory with a config.json")
    parser.add_argument("--load-format", default="auto", choices=["auto", "dummy"])
    parser.add_argument("--works", default=",".join(EVERY_DAY))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--quantization", default="auto", choices=list(WEIGHTS))
    parser.add_argument("--kv-cache-dtype", default="auto", choices=["auto", "fp8"])
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--steps", action="store_true", help="tell where each work's time went")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.perf_counter()
    settings = make_settings(
        options.model,
        device=options.device,
        load_format=options.load_format,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=8192,
        max_model_len=options.max_model_len,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        hf_overrides=OVERRIDES.get(options.quantization),
        tensor_parallel_size=options.tensor_parallel_size,
        max_queued_requests=10_000,
    )
    measured = f"{Path(options.model).name}, {kind_of(options)}"
    core = build_core(settings, Path(options.model))
    engine = Engine(core, options.max_num_seqs)
    log = StepLog(core.scheduler) if options.steps else None
    tables: dict[str, Table] = {}
    start = {
        "start_s": round(time.perf_counter() - begin, 2),
        "start_parts_s": engine.start_parts,
    }
    print(json.dumps(start), flush=True)
    runs: Runs = {}
    engine.generate(prompts(8, 100, 200, 9), [16] * 8)
    # As a server does: a collection of all objects would take as long as several steps.
    gc.collect()
    gc.freeze()
    for name in [name for name in options.works.split(",") for _ in range(options.repeat)]:
        engine.forget()
        if log is not None:
            log.clear()
        found = WORKLOADS[name](engine)
        if log is not None:
            tables[name] = log.table(name, time.perf_counter())
            print(*tables[name].rows, sep="\n", flush=True)
        for figure, run in found.items():
            runs.setdefault(figure, []).append(run)
        print(name, json.dumps(found), flush=True)
        if options.out:
            made = replace(
                report(measured, hardware(), runs, tables.values()),
                values={"hardware": hardware(), **start, **medians(runs)},
            )
            made.write(options.out)


if __name__ == "__main__":
    main()
