"""A rank beside rank 0: `python -m kvasir_engine.parallel.worker RANK PARENT_PID`.

It loads its shard, then replays rank 0's plans. It lives as long as the thread of rank 0 that
started it, and ends with an orderly exit only when rank 0 closes the channel of plans.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvasir_engine.parallel.protocol import Progress, Report, WorkerConfig
from kvasir_engine.parallel.stopped_process import LOOK_SECONDS, StoppedProcess
from kvasir_engine.parent_death import die_with_parent

if TYPE_CHECKING:
    from kvasir_engine.step_runner import Runner


def main() -> int:
    """Exit status: 0 when rank 0 has closed, 1 after a failure, which is reported."""
    # Rank 0 alone decides the end: a signal to the whole process group must not be a death.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    die_with_parent(int(sys.argv[2]))
    threading.Thread(target=_watch_rank_zero, args=(int(sys.argv[2]),), daemon=True).start()
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerConfig)
    try:
        _serve(config)
    except Exception as error:
        lines = traceback.format_exc()
        _report(config, Report(Progress.FAILED, type(error).__name__, f"{error}", lines))
        return 1
    return 0


def _serve(config: WorkerConfig) -> None:
    if config.settings.device == "sim":
        from kvasir_engine.sim.sim_build import build_sim_runner

        _replay(config, build_sim_runner(config.settings, Path(config.model_dir)).runner)
        return
    # torch takes seconds to import, in which signals must already be handled as above.
    from kvasir_engine.device.collectives import destroy_tensor_parallel
    from kvasir_engine.parallel.rendezvous import meet
    from kvasir_engine.startup.torch_build import build_torch_runner, pick_device

    settings = config.settings
    device = pick_device(settings.device)
    _report(config, Report(Progress.IMPORTED))
    meet(
        config.rank,
        settings,
        store=Path(config.store),
        device=device,
        step_bytes=config.step_bytes,
    )
    _replay(config, build_torch_runner(settings, Path(config.model_dir)).runner)
    destroy_tensor_parallel()


def _replay(config: WorkerConfig, runner: Runner) -> None:
    """Run rank 0's plans until it closes their channel."""
    from kvasir_engine.parallel.plan_channel import PlanReader
    from kvasir_engine.parallel.plan_codec import decode, decode_masks

    gc.collect()
    gc.freeze()
    _report(config, Report(Progress.READY))
    plans = PlanReader(config.plans)
    while (message := plans.receive()) is not None:
        plan = decode(message)
        runner.forward(plan)
        if plan.masked is not None:
            if (masks := plans.receive()) is None:
                break
            plan.masks = decode_masks(masks)
        runner.sample(plan)
    runner.close()


def _watch_rank_zero(pid: int) -> None:
    """End rank 0, and with it all ranks, when it was stopped: its own watch is stopped too."""
    rank_zero = StoppedProcess(pid)
    while not rank_zero.look():
        time.sleep(LOOK_SECONDS)
    sys.stderr.write("tensor-parallel rank 0 was stopped (SIGSTOP)\n")
    sys.stderr.flush()
    os.kill(pid, signal.SIGKILL)


def _report(config: WorkerConfig, report: Report) -> None:
    os.write(config.reports, report.encode())


if __name__ == "__main__":
    # Tearing torch down takes as long as a rank 0 waits, and may hang after a failure.
    os._exit(main())
