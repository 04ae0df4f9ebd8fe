"""One tensor-parallel rank, run as a process: writes logits of some models over paged KV.

usage: rank.py STEPS STORE RANK SIZE OUT sharded|whole MODEL_DIR...

The last but one says how experts are divided.
"""

import runpy
import sys
from pathlib import Path

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from kvasir_engine.device.collectives import destroy_tensor_parallel, init_tensor_parallel
from kvasir_engine.loader.load_model import load_model

steps, store, rank, size, out, experts, *model_dirs = sys.argv[1:]
torch.set_num_threads(1)
CPU = torch.device("cpu")
init_tensor_parallel(
    int(rank),
    int(size),
    store=FileStore(store, int(size)),
    device=CPU,
    expert_parallel=experts == "whole",
)
run = runpy.run_path(steps)["run"]
torch.save([run(load_model(Path(model_dir)).model) for model_dir in model_dirs], out)
destroy_tensor_parallel()
