"""Two processes meet through a file, over no interface but the loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MEET = """
import json, os, sys
from pathlib import Path
import torch
from kvasir_engine.parallel.rendezvous import meet
from kvasir_engine.settings import make_settings
from kvasir_engine.device.collectives import all_gather, destroy_tensor_parallel, tensor_parallel
rank, store = int(sys.argv[1]), Path(sys.argv[2])
before = dict(os.environ)
settings = make_settings("model", tensor_parallel_size=2, enable_expert_parallel=True)
meet(rank, settings, store=store, device=torch.device("cpu"))
inodes = {Path(f"/proc/self/fd/{fd}").resolve().name for fd in os.listdir("/proc/self/fd")}
lines = [line.split() for name in ("tcp", "tcp6")
         for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
addresses = {line[1].rpartition(":")[0] for line in lines if f"socket:[{line[9]}]" in inodes}
gathered = all_gather(torch.tensor([float(rank)])).tolist()
tp = tensor_parallel()
assert tp.expert_parallel
print(json.dumps([tp.rank, tp.size, gathered, sorted(addresses), dict(os.environ) == before]))
destroy_tensor_parallel()
"""
LOOPBACK = {"0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, ::1 and the first as the second kind, as /proc writes them."""


@pytest.mark.slow
def test_two_ranks_meet_over_the_loopback_and_leave_the_environment_alone(tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", MEET]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], env=env, stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    said = [json.loads(process.communicate(timeout=120)[0]) for process in ranks]
    for rank, (own, size, gathered, addresses, same_environment) in enumerate(said):
        assert (own, size, gathered) == (rank, 2, [0.0, 1.0])
        assert addresses
        assert set(addresses) <= LOOPBACK
        assert same_environment
