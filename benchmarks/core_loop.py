"""Cost of a step for the core's process, with a device that takes no time.

    python benchmarks/core_loop.py [--steps 3000] [--repeat 5] [--save]

The service is the real one with its sockets, metrics and scheduler, over the simulated runner at
zero step time; each plan is also encoded and written into the ring from which tensor-parallel
ranks would read. The client runs in the same process as a hook of the loop, and its own time is
subtracted: it reads every message of the core, and for each request that ends sends the next one,
encoded beforehand. Outputs average 100 tokens, so that 1 % of the rows end, and as many arrive,
each step.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import random
import signal
import tempfile
import time
from pathlib import Path

import zmq
from common import ROOT, TINY_MODEL, Figure, Report, Table, warn_if_busy

from kvasir.wire.block_hash import chain_hashes
from kvasir_engine.core.build import Core, build_core
from kvasir_engine.core.channels import Channels
from kvasir_engine.core.service import CoreService, StepClock
from kvasir_engine.core.status import CoreStatus
from kvasir_engine.core.telemetry import AfterStep
from kvasir_engine.messages import Add, Hello, StepTokens, encoder, from_core_decoder
from kvasir_engine.parallel.plan_channel import PlanWriter
from kvasir_engine.parallel.plan_codec import encode
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.counters import SchedulerLoad
from kvasir_engine.settings import make_settings
from kvasir_engine.step_plan import StepPlan
from kvasir_engine.step_runner import Runner, StepHandle

MEAN_OUTPUT = 100
PROMPT_TOKENS = (64, 256)
WARM_UP_STEPS = 300
PROFILE_ROWS = 20
GOALS = {256: "<= 3", 1: "<= 0.4"}
"""Milliseconds a step, by rows."""


class EncodingRunner:
    """Runner that does what rank 0 does for other ranks, then runs the plan."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._plans = PlanWriter(0)

    def forward(self, plan: StepPlan) -> None:
        """Runner.forward."""
        self._plans.send(encode(plan))
        self._runner.forward(plan)

    def sample(self, plan: StepPlan) -> StepHandle:
        """Runner.sample."""
        return self._runner.sample(plan)

    def recover(self, error: Exception) -> bool:
        """Runner.recover: the ranks would have lost each other."""
        raise error

    def close(self) -> None:
        """Runner.close."""
        self._plans.close()
        self._runner.close()


def make_requests(count: int) -> list[bytes]:
    """Encoded `Add` messages, the same for every run."""
    draw = random.Random(0)
    messages = []
    for handle in range(count):
        prompt = [draw.randrange(3, 1700) for _ in range(draw.randint(*PROMPT_TOKENS))]
        length = draw.randint(2, 2 * MEAN_OUTPUT - 2)
        request = EngineRequest(
            request_id=f"bench-{handle}",
            handle=handle,
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.8),
            eos_token_ids=[2],
            block_hashes=chain_hashes(prompt, 16),
        )
        messages.append(encoder.encode(Add.of(request, 0)))
    return messages


class Clients:
    """Keep `rows` requests running and count the CPU time of everything else (AfterStep)."""

    def __init__(
        self, channels: Channels, rows: int, steps: int, profile: cProfile.Profile | None
    ) -> None:
        self._profile = profile
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.rcvhwm = 0
        self._inbox.bind(channels.to_client(0))
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.sndhwm = 0
        self._outbox.connect(channels.to_core)
        self._requests = iter(make_requests(rows + (WARM_UP_STEPS + steps) * rows // 80 + 64))
        self._steps = steps
        self._own = 0.0
        self._began = (0, 0.0, 0.0)
        self.tokens = self.finished = 0
        self.measured_steps = 0
        self.loop_ms = self.process_ms = 0.0
        self._outbox.send(encoder.encode(Hello(0, 0)))
        # Some wait, so that a row is taken again in the step after it became free.
        for _ in range(rows + 1 + rows // 32):
            self._outbox.send(next(self._requests))

    def __call__(self, core: Core, load: SchedulerLoad | None) -> None:
        """AfterStep."""
        since = time.thread_time()
        if self._profile is not None:
            self._profile.disable()
        self._receive()
        steps = core.scheduler.counters.steps
        if not self._began[0] and steps >= WARM_UP_STEPS:
            self.tokens = self.finished = 0
            self._began = (steps, time.process_time() - self._own, since - self._own)
        elif self._began[0] and steps - self._began[0] >= self._steps and not self.measured_steps:
            self._stop(steps, since)
        if self._profile is not None:
            self._profile.enable()
        self._own += time.thread_time() - since

    def close(self) -> None:
        """AfterStep.close."""
        self._context.destroy(linger=0)

    def _receive(self) -> None:
        while True:
            try:
                message = from_core_decoder.decode(self._inbox.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            if isinstance(message, StepTokens):
                self.tokens += len(message.tokens) // 4 + len(message.deltas)
                for delta in message.deltas:
                    if delta.finish_reason is not None:
                        self.finished += 1
                        self._outbox.send(next(self._requests))

    def _stop(self, steps: int, thread_now: float) -> None:
        first, process, thread = self._began
        self.measured_steps = steps - first
        spent = time.process_time() - (time.thread_time() - thread_now) - self._own - process
        self.process_ms = spent / self.measured_steps * 1e3
        self.loop_ms = (thread_now - self._own - thread) / self.measured_steps * 1e3
        os.kill(os.getpid(), signal.SIGTERM)


def run(rows: int, steps: int, profile: cProfile.Profile | None = None) -> Clients:
    """Run a fresh core once, and return its clients; `profile` takes all but the clients."""
    settings = make_settings(
        str(TINY_MODEL), device="sim", max_num_seqs=rows, max_num_batched_tokens=8192
    )
    with tempfile.TemporaryDirectory() as directory:
        channels = Channels(Path(directory))
        status = CoreStatus(channels.status, create=True)
        core = build_core(settings, TINY_MODEL, watcher=StepClock(status))
        core.loop.runner = core.built_runner.runner = EncodingRunner(core.built_runner.runner)
        clients = Clients(channels, rows, steps, profile)
        gc.collect()
        gc.freeze()  # as the core's process does
        service = CoreService(
            core, channels, status, num_clients=1, after_step=[_metrics(core), clients]
        )
        try:
            if profile is None:
                service.run()
            else:
                profile.runcall(service.run)
        finally:
            clients.close()
            service.close()
            status.close()
            gc.unfreeze()
    return clients


def _metrics(core: Core) -> AfterStep:
    from kvasir_engine.core.core_metrics import CoreMetrics
    from kvasir_engine.metric_registry import MetricRegistry

    return CoreMetrics(MetricRegistry("kvasir_", "bench"), core, core.scheduler.kv.block_size)


def profile_table(rows: int, steps: int) -> Table:
    """Return a table of the functions in which one profiled run spent most, by own time."""
    profile = cProfile.Profile()
    clients = run(rows, steps, profile)
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    largest = sorted(stats.items(), key=lambda item: -item[1][2])[:PROFILE_ROWS]
    total = clients.measured_steps + WARM_UP_STEPS
    return Table(
        f"Profile with {rows} rows, microseconds a step (cProfile's own cost included)",
        ["function", "calls a step", "own µs", "with callees µs"],
        [
            [
                _name(*key),
                f"{n / total:.2f}",
                f"{own / total * 1e6:.1f}",
                f"{all_ / total * 1e6:.1f}",
            ]
            for key, (_, n, own, all_, _) in largest
        ],
    )


def _name(file: str, line: int, function: str) -> str:
    if file == "~":
        return f"`{function}`".replace("|", "\\|")
    path = Path(file)
    within = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-2:])
    return f"`{within}:{line} {function}`"


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3000, help="of each run")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cpu/")
    options = parser.parse_args()
    warn_if_busy()
    figures = []
    for rows, goal in GOALS.items():
        runs = [run(rows, options.steps) for _ in range(options.repeat)]
        text = f"{rows} rows" if rows > 1 else "1 row"
        figures += [
            Figure(f"CPU a step, {text}", "ms", [r.process_ms for r in runs], goal, 3),
            Figure(f"of which the loop's thread, {text}", "ms", [r.loop_ms for r in runs], "", 3),
            Figure(f"tokens a step, {text}", "", [r.tokens / r.measured_steps for r in runs]),
            Figure(f"ends a step, {text}", "", [r.finished / r.measured_steps for r in runs]),
        ]
    report = Report(
        "core_loop",
        "The core's loop",
        "CPU time of a step with the simulated runner at zero step time: scheduling, host arrays, "
        "plan encoding, sockets, output messages and metrics; 1 % of the rows end and as many "
        "requests arrive each step.",
        figures,
        [profile_table(rows, options.steps) for rows in GOALS],
        ("numpy", "msgspec", "pyzmq"),
    )
    report.publish(save=options.save)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as metrics:
        # Metrics go to files, as in a served engine; read when prometheus_client is imported.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
        main()
