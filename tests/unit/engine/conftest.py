"""Small random-weight models of every supported architecture, and a paged forward pass."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
from support.engines.random_models import COMPILED, PagedModel, save_hf_model


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Have torch draw the same numbers in each run, where a test's file has imported it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def hf_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """hf_model_dir(name): the directory of the small random-weight model `name` of MODELS."""
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(f"hf-{name}")
            save_hf_model(name, made[name])
        return made[name]

    return directory


@pytest.fixture
def without_interpreter(tmp_path: Path) -> Callable[..., str]:
    """without_interpreter(program, *arguments): what that Python program prints, in whose process
    Triton compiles, into a cache of the test's own."""

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, *arguments],
            capture_output=True,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "TRITON_CACHE_DIR": str(tmp_path / "triton"),
                "PYTHONPATH": ":".join(sys.path),
            },
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def paged_model() -> type[PagedModel]:
    """The class PagedModel: paged_model(model).step({"a": [1, 2, 3], "b": [4]})."""
    return PagedModel


@pytest.fixture(scope="session")
def hf_logits(hf_model_dir: Callable[[str], Path]) -> Callable[[str, list[int]], torch.Tensor]:
    """hf_logits(name, tokens): transformers' fp32 logits [tokens, vocab], eager attention."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded: dict[str, Any] = {}

    def logits(name: str, tokens: list[int]) -> torch.Tensor:
        if name not in loaded:
            loaded[name] = AutoModelForCausalLM.from_pretrained(
                hf_model_dir(name), attn_implementation="eager", dtype=torch.float32
            )
        with torch.inference_mode():
            out: torch.Tensor = loaded[name](torch.tensor([tokens])).logits[0]
        return out

    return logits


@pytest.fixture(scope="session")
def triton_interpreter() -> None:
    """Triton's interpreter makes loop bounds of arrays with one element, which numpy 2.4 refuses
    to take for numbers (Triton 3.6): mended here, where there is no GPU."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_lang_tensor


@pytest.fixture
def program_bytes() -> dict[int, int]:
    """Of shared memory, by compute capability (CUDA programming guide, "Compute Capabilities")."""
    from kvasir_engine.device.tile_memory import HOPPER_BYTES

    return {80: 163 << 10, 86: 99 << 10, 90: HOPPER_BYTES}


@pytest.fixture
def compiled_elsewhere(without_interpreter: Callable[..., str]) -> Callable[..., str]:
    """compiled_elsewhere(program, *arguments): what that Python program prints, to which `COMPILED`
    belongs."""
    return lambda program, *arguments: without_interpreter(COMPILED + program, *arguments)
