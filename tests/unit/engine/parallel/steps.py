"""The steps that every rank, and the whole model, run."""

import runpy
from pathlib import Path

import torch


def run(model: object) -> torch.Tensor:
    """Logits of two prompts, then of a decode beside a prefill."""
    conftest = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))
    paged = conftest["PagedModel"](model)
    prompt = list(range(40))
    first = paged.step({"a": prompt, "b": prompt[5:12]})
    second = paged.step({"a": [41], "b": [7, 8, 9]})
    return torch.cat([first["a"], first["b"], second["a"], second["b"]])
