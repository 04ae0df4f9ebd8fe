"""Two GPUs give the tokens of one, and end together.

    python e2e/gpu/tensor_parallel.py [--only NAME,...] [--out DIR]

Small random models of four families, and what differs: more ranks than KV heads, windows, experts.
Greedy tokens of two GPUs are those of one, as `check.py` has it ("the same" is identical or as
likely by transformers' own scores), and so are seeded draws, with and without top-p. With CUDA
graphs, which are asserted to have been replayed, and without; over shared prefixes, whose graphs
are captured when first wanted. Then a rank is killed, and stopped, under load: all processes end
within 5 s, with exit status and reason, and the memory of both GPUs is free.

Each case is a process group of its own with a time limit, so that a hang costs its limit. Prints a
line a case, writes tensor_parallel.json and a log a case into --out ($OUT), exits 1 on a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rank_endings import MAX_SECONDS_TO_END, ending

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks")]

MODELS = ("llama3", "qwen3_one_kv_head", "gemma2", "mixtral")
NEW_TOKENS = 24
SECONDS = 60.0
"""Limit of a case; one that also compiles for the first time gets FIRST_SECONDS."""
FIRST_SECONDS = 90.0
ALL_SECONDS = 232.0
FREE_BYTES = 64 << 20
"""Bytes by which a GPU's used memory may differ afterwards."""
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
"""Signal to a rank, by kind of case."""
AT_START = {
    "shared": "from kvasir_engine.runner import prefix_groups\n"
    "prefix_groups.LAUNCH_COST_BYTES = -(1 << 40)\n",
}
"""Code that every rank of a kind of case runs at start: to share prefixes at any gain."""


@dataclass(frozen=True)
class Case:
    """One process group: `kind` is what main_of_case runs."""

    kind: str
    model: str = "llama3"
    dtype: str = "float32"
    seconds: float = SECONDS

    @property
    def name(self) -> str:
        """The case's name in the report."""
        return f"{self.kind}-{self.model}-{self.dtype}"


def stages() -> list[list[Case]]:
    """Return the cases; those of a stage run at once."""
    one = [Case("one", name, seconds=FIRST_SECONDS) for name in MODELS]
    one.append(Case("one", "llama3", "bfloat16", FIRST_SECONDS))
    graphs = [Case("graphs", name) for name in MODELS]
    eager = [Case("eager", name) for name in MODELS]
    return [
        one,
        [Case("graphs", "llama3", "bfloat16", FIRST_SECONDS)],
        [Case("killed"), Case("stopped")],
        graphs[:2],
        [*graphs[2:], Case("shared")],
        eager,
    ]


# -- in a case's process ----------------------------------------------------------------------


def jobs(dtype: str) -> list[tuple[list[int], dict[str, Any]]]:
    """Return prompts and how their tokens are chosen; in bf16 draws may differ with reason."""
    from check import prompts

    given = prompts(1)
    found: list[tuple[list[int], dict[str, Any]]] = [(ids, {"temperature": 0.0}) for ids in given]
    if dtype == "float32":
        found += [(ids, {"temperature": 0.8, "seed": i}) for i, ids in enumerate(given)]
        found += [(ids, {"seed": i, "top_p": 0.9}) for i, ids in enumerate(given[:4])]
    return found


def run_engine(model_dir: Path, dtype: str, **settings: Any) -> dict[str, Any]:
    """Return the tokens of all jobs, in order, and which graphs were replayed."""
    from kvasir_engine.core.build import build_core
    from kvasir_engine.device.collectives import tensor_parallel
    from kvasir_engine.request import EngineRequest
    from kvasir_engine.sampling_params import SamplingParams
    from kvasir_engine.settings import make_settings

    options = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    begin = time.monotonic()
    core = build_core(
        make_settings(str(model_dir), dtype=dtype, **{**options, "num_blocks": 512, **settings}),
        model_dir,
    )
    started = round(time.monotonic() - begin, 1)
    found: dict[int, list[int]] = {}

    def step() -> None:
        news = core.loop.step()
        if news is None:
            return
        for handle, token in zip(news.handles.tolist(), news.tokens.tolist(), strict=True):
            found[handle].append(token)
        for _, delta in news.deltas:
            found[delta.handle].extend(delta.token_ids)

    for i, (ids, how) in enumerate(jobs(dtype)):
        found[i] = []
        params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, **how)
        core.scheduler.add(EngineRequest(f"r{i}", i, ids, params))
        if i % 5 == 4:
            step()
    while not core.loop.idle:
        step()
    core.loop.check_idle()
    runner: Any = core.loop.runner
    runner = getattr(runner, "_runner", runner)
    communicator: Any = tensor_parallel().communicator
    made = {
        "tokens": [found[i] for i in sorted(found)],
        "steps": runner.graphs.steps,
        "start_s": started,
        "run_s": round(time.monotonic() - begin - started, 1),
        "communicator": None if communicator is None else communicator.name,
    }
    core.built_runner.runner.close()
    return made


def one(case: Case, directory: Path) -> dict[str, Any]:
    """Make the model and the tokens of one GPU."""
    from check import models

    model_dir = directory / f"{case.model}-{case.dtype}"
    models().save_hf_model(case.model, model_dir)
    made = run_engine(model_dir, case.dtype)
    (directory / f"{case.model}-{case.dtype}.json").write_text(json.dumps(made["tokens"]))
    return {**made, "tokens": len(made["tokens"]), "faults": []}


def two(case: Case, directory: Path) -> dict[str, Any]:
    """Compare the tokens of two GPUs with those of one."""
    from judging import Judge

    model_dir = directory / f"{case.model}-{case.dtype}"
    want = json.loads((directory / f"{case.model}-{case.dtype}.json").read_text())
    eager = case.kind == "eager"
    made = run_engine(model_dir, case.dtype, tensor_parallel_size=2, enforce_eager=eager)
    judge = Judge(model_dir, case.dtype)
    faults, identical = [], 0
    for i, (ids, how) in enumerate(jobs(case.dtype)):
        mine, other = made["tokens"][i], want[i]
        identical += mine == other
        fault = judge.differ(ids, other, mine) if mine != other else None
        if fault is not None or (mine != other and how.get("temperature") != 0.0):
            faults.append(f"request {i} ({how}): {fault}")
    steps = made["steps"]
    wanted = {"shared": ("shared_prefix",), "eager": ()}.get(case.kind, ("full", "piecewise"))
    faults += [f"no {mode} graph was replayed" for mode in wanted if not steps[mode]]
    if eager and any(steps.values()):
        faults.append(f"graphs were replayed: {steps}")
    return {**made, "tokens": f"{identical} of {len(want)} identical", "faults": faults}


def main_of_case(case: Case, directory: Path) -> None:
    """Write the case's result as NAME.result.json into `directory`."""
    begin = time.monotonic()
    if case.kind in SIGNALS:
        made = asyncio.run(ending(SIGNALS[case.kind], directory / "llama3-float32"))
    else:
        made = (one if case.kind == "one" else two)(case, directory)
    made["seconds_in_all"] = round(time.monotonic() - begin, 1)
    (directory / f"{case.name}.result.json").write_text(json.dumps(made))
    sys.stdout.flush()
    # What is left of the group's libraries may wait for a rank that is gone.
    os._exit(0)


# -- in the process that starts the cases --------------------------------------------------------


class Running:
    """A started case."""

    def __init__(self, case: Case, number: int, directory: Path, out: Path, left: float) -> None:
        self.case = case
        self._directory = directory
        self._log = out / f"{case.name}.log"
        env = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONFAULTHANDLER": "1"}
        paths = [str(ROOT / "api"), str(ROOT / "engine"), env.get("PYTHONPATH", "")]
        if case.kind == "one":
            env["CUDA_VISIBLE_DEVICES"] = str(number % 2)
        if case.kind in AT_START:
            startup = directory / case.kind
            startup.mkdir(exist_ok=True)
            (startup / "sitecustomize.py").write_text(AT_START[case.kind])
            paths.insert(0, str(startup))
        # Cores and ranks are processes of their own.
        env["PYTHONPATH"] = os.pathsep.join(paths)
        fields = json.dumps([case.kind, case.model, case.dtype])
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--case", fields, "--directory", str(directory)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        self._deadline = time.monotonic() + min(case.seconds, left)

    def result(self) -> dict[str, Any]:
        """Return what it found; ends it at its limit."""
        try:
            status = self.process.wait(max(0.1, self._deadline - time.monotonic()))
            fault = f"exit status {status}"
        except subprocess.TimeoutExpired:
            fault = "not done within its limit"
            # All processes of the case write down where they are.
            os.killpg(self.process.pid, signal.SIGABRT)
            time.sleep(1)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        path = self._directory / f"{self.case.name}.result.json"
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        lines = self._log.read_text(errors="replace").splitlines()
        return {"faults": [fault], "log": lines[-120:]}


def used_memory() -> list[int]:
    """Return the bytes in use of each GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) << 20 for line in said.stdout.split()]


def memory_fault(before: list[int]) -> list[str]:
    """Return what is wrong when memory that was free `before` stays in use."""
    end = time.monotonic() + MAX_SECONDS_TO_END
    while True:
        now = used_memory()
        if all(b - a <= FREE_BYTES for a, b in zip(before, now, strict=False)):
            return []
        if time.monotonic() > end:
            return [f"in use before and after: {before}, {now} bytes"]
        time.sleep(0.2)


def run_all(chosen: Iterable[list[Case]], out: Path) -> dict[str, Any]:
    """Run the stages one after the other, and write what is known after each."""
    made: dict[str, Any] = {"cases": {}, "faults": []}
    end = time.monotonic() + ALL_SECONDS
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for stage in chosen:
            left = end - time.monotonic()
            if left < 10:
                made["faults"] += [f"{case.name}: no time was left" for case in stage]
                continue
            before = used_memory()
            running = [Running(case, n, directory, out, left) for n, case in enumerate(stage)]
            for each in running:
                found = made["cases"][each.case.name] = each.result()
                print(each.case.name, json.dumps(found), flush=True)
                made["faults"] += [f"{each.case.name}: {fault}" for fault in found["faults"]]
            made["faults"] += [f"after {stage[0].kind}: {it}" for it in memory_fault(before)]
            (out / "tensor_parallel.json").write_text(json.dumps(made, indent=1) + "\n")
    return made


def main() -> int:
    """Print and write all results; 1 when something was otherwise than it has to be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="kinds of cases, as killed,stopped; one always")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        main_of_case(Case(*json.loads(options.case)), options.directory)
    options.out.mkdir(parents=True, exist_ok=True)
    kinds = {"one", *options.only.split(",")} if options.only else None
    chosen = [[case for case in stage if kinds is None or case.kind in kinds] for stage in stages()]
    made = run_all([stage for stage in chosen if stage], options.out)
    print("faults:", *(made["faults"] or ["none"]), sep="\n", flush=True)
    return int(bool(made["faults"]))


if __name__ == "__main__":
    sys.exit(main())
