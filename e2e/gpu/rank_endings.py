"""The end of a core over two GPUs after one of its ranks has ended, or was stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

MAX_SECONDS_TO_END = 5.0


async def ending(given: signal.Signals, model_dir: Path) -> dict[str, Any]:
    """Give the other rank of a core that decodes a signal, and see the end of both through."""
    from kvasir_engine.core.channels import CoreConfig
    from kvasir_engine.core.spawn import CoreProcess
    from kvasir_engine.core.zmq_client import ZmqCoreClient
    from kvasir_engine.settings import make_settings

    settings = make_settings(
        str(model_dir),
        dtype="float32",
        tensor_parallel_size=2,
        max_model_len=480,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        num_blocks=512,
    )
    core = CoreProcess(CoreConfig(settings, str(model_dir), 1))
    client = ZmqCoreClient(core.channels)
    watch = asyncio.create_task(asyncio.to_thread(core.wait))
    await client.wait_ready()
    rank = children(core.process.pid)[0]
    streams = [asyncio.create_task(_stream(client, i)) for i in range(8)]
    await asyncio.sleep(1.0)
    os.kill(rank, given)
    begin = time.monotonic()
    faults: list[str] = []
    try:
        status: int | None = await asyncio.wait_for(asyncio.shield(watch), 15)
    except TimeoutError:
        status = None
    wait_until_ended(rank, begin + 15)
    seconds = round(time.monotonic() - begin, 2)
    reason = core.failure()
    if status != 1 or alive(rank) or seconds > MAX_SECONDS_TO_END:
        faults.append(f"exit status {status}, rank alive: {alive(rank)}, after {seconds} s")
    if "tensor-parallel rank 1" not in reason:
        faults.append(f"the reason is {reason!r}")
    ends = await asyncio.gather(*streams, return_exceptions=True)
    told = [f"{each}" for each in ends if isinstance(each, BaseException)]
    tokens = sum(each for each in ends if isinstance(each, int))
    client.close()
    core.stop()
    return {
        "status": status,
        "seconds": seconds,
        "reason": reason,
        "streams_told": sorted(set(told)),
        "whole_streams": tokens,
        "faults": faults,
    }


async def _stream(client: Any, number: int) -> int:
    """Ask for one answer after the other, until the core ends."""
    from kvasir_engine.request import EngineRequest
    from kvasir_engine.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    while True:
        given = [number + 3, 8, 13, number] * 8
        async for _ in await client.submit(EngineRequest(f"s{number}", number, given, params)):
            pass


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def alive(pid: int) -> bool:
    """Return True unless the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_ended(pid: int, deadline: float) -> None:
    """Return when the process has ended, or at `deadline` (monotonic)."""
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
