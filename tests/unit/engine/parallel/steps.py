"""The steps that every rank, and the whole model, run."""

import runpy
from pathlib import Path

import torch

TESTS = Path(__file__).parents[3]


def run(model: object) -> torch.Tensor:
    """Logits of two prompts, then of a decode beside a prefill."""
    models = runpy.run_path(str(TESTS / "support/engines/random_models.py"))
    paged = models["PagedModel"](model)
    prompt = list(range(40))
    first = paged.step({"a": prompt, "b": prompt[5:12]})
    second = paged.step({"a": [41], "b": [7, 8, 9]})
    return torch.cat([first["a"], first["b"], second["a"], second["b"]])
