"""Faults injected on a GPU: they leave an engine that serves, or a process that ended and said why.

    python e2e/gpu/failures.py [--out failures.json]

The core in a process of its own, with the shipped model on the GPU and a fault in each stage of a
step in turn, injected while four requests are being answered: the requests of that step may end
with an error, and a request after it is answered as one before was. Then an index far outside of a
tensor, which the GPU itself refuses: the process has to end within a second with status 1, and has
to have said what the GPU said. Exits 1 when something was otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks")]

from common import commit  # noqa: E402

TINY = ROOT / "engine/kvasir_engine/assets/tiny"
STAGES = ("plan", "upload", "forward", "sample", "retire")
LONE, TOKENS = [5, 9, 11, 40, 7], 24
MOST_SECONDS = 1.0
"""From the GPU's failure to the end of the process."""
Function = Callable[..., Any]


def core(directory: Path) -> int:
    """Be the core, with a fault wherever the file `fault` in `directory` says; its exit status."""
    import torch

    from kvasir_engine.core import process
    from kvasir_engine.runner.batch import DeviceBatch
    from kvasir_engine.runner.torch_runner import TorchRunner
    from kvasir_engine.runner.torch_step import TorchStep
    from kvasir_engine.scheduler.scheduler import Scheduler

    def due(stage: str) -> bool:
        asked = directory / "fault"
        if not asked.exists() or asked.read_text() != stage:
            return False
        asked.unlink()
        (directory / "faulted").write_text(str(time.time()))
        return True

    def failing(stage: str, function: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            if due(stage):
                raise ValueError(f"injected into {stage}")
            found = function(*args, **kwargs)
            if stage == "forward" and due("cuda"):
                beyond = torch.full((1,), 1 << 30, device="cuda")
                torch.zeros(4, device="cuda")[beyond] += 1
            return found

        return call

    for owner, name, stage in (
        (Scheduler, "schedule", "plan"),
        (DeviceBatch, "apply", "upload"),
        (TorchRunner, "forward", "forward"),
        (TorchRunner, "sample", "sample"),
        (TorchStep, "wait", "retire"),
    ):
        setattr(owner, name, failing(stage, getattr(owner, name)))
    return process.main()


async def answer(client: Any, name: str, ids: list[int], told: Function | None = None) -> Any:
    """A request's tokens, or its error; `told` is called with the first of them."""
    from kvasir_engine.request import EngineRequest
    from kvasir_engine.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    found: list[int] = []
    async for deltas in await client.submit(EngineRequest(name, 0, ids, params)):
        for delta in deltas:
            if delta.error:
                return delta.error
            found += delta.token_ids
        if told is not None:
            told()
    return found


async def with_fault(client: Any, directory: Path, stage: str) -> dict[str, Any]:
    """Return what four requests and the one after them got."""

    armed: list[str] = []

    def inject() -> None:
        # Once: a second one would meet the request after these.
        if not armed:
            armed.append(stage)
            (directory / "fault").write_text(stage)

    given = [[i + 3, 8, 13, i] * 4 for i in range(4)]
    found = await asyncio.gather(
        *(answer(client, f"{stage}-{i}", ids, inject) for i, ids in enumerate(given))
    )
    happened = (directory / "faulted").exists()
    (directory / "faulted").unlink(missing_ok=True)
    client.reset_prefix_cache()
    errors = sorted({each for each in found if isinstance(each, str)})
    whole = sum(isinstance(each, list) and len(each) == TOKENS for each in found)
    after = await answer(client, f"{stage}-after", LONE)
    return {"happened": happened, "errors": errors, "answered": whole, "after": after}


async def with_cuda_error(client: Any, directory: Path, running: Any) -> dict[str, Any]:
    """Return how the process ended after the GPU refused an index."""
    (directory / "fault").write_text("cuda")
    try:
        client_saw = f"{await answer(client, 'cuda', LONE)}"
    except Exception as error:
        client_saw = f"{type(error).__name__}: {error}"
    status = await asyncio.wait_for(running.wait(), 60)
    seconds = time.time() - float((directory / "faulted").read_text())
    told = directory / "failure"
    reason = told.read_text() if told.exists() else ""
    return {
        "status": status,
        "seconds": round(seconds, 2),
        "reason": reason,
        "client_saw": client_saw,
    }


async def measure(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """All rows, and what is wrong with them."""
    from kvasir_engine.core.channels import Channels, CoreConfig
    from kvasir_engine.core.status import CoreStatus
    from kvasir_engine.core.zmq_client import ZmqCoreClient
    from kvasir_engine.settings import make_settings

    channels = Channels(directory)
    channels.metrics.mkdir()
    CoreStatus(channels.status, create=True).close()
    settings = make_settings(str(TINY), device="cuda", dtype="float32", max_num_seqs=8)
    channels.write_config(CoreConfig(settings, str(TINY), num_clients=1))
    command = [sys.executable, __file__, "--core", str(directory), str(os.getpid())]
    running = await asyncio.create_subprocess_exec(*command)
    try:
        client = ZmqCoreClient(channels, 0)
        await client.wait_ready()
        before = await answer(client, "before", LONE)
        client.reset_prefix_cache()
        rows: dict[str, Any] = {}
        faults = []
        for stage in STAGES:
            row = rows[stage] = await with_fault(client, directory, stage)
            if not row["happened"] or row["after"] != before:
                faults.append(f"after a fault in {stage}: {row}, not {before}")
        cuda = rows["cuda"] = await with_cuda_error(client, directory, running)
        client.close()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    if cuda["status"] != 1 or cuda["seconds"] > MOST_SECONDS or "CUDA error" not in cuda["reason"]:
        faults.append(f"after the GPU's own: {cuda}")
    return rows, faults


def main() -> int:
    """Print and write the rows; 1 when something was otherwise than it has to be."""
    if sys.argv[1:2] == ["--core"]:
        directory = sys.argv[2]
        sys.argv = [sys.argv[0], *sys.argv[2:]]
        return core(Path(directory))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    with tempfile.TemporaryDirectory() as directory:
        rows, faults = asyncio.run(measure(Path(directory)))
    made = {
        "gpu": torch.cuda.get_device_name(),
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "stages": rows,
        "faults": faults,
    }
    text = json.dumps(made, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
