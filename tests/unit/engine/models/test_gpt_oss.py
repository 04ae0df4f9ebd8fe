"""gpt-oss with experts in MXFP4 against transformers with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines.mxfp4_reference import save_mxfp4_models
from transformers import AutoModelForCausalLM

from kvasir.models.config_overrides import ConfigOverrides
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.load_model import load_model

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def models(hf_model_dir, tmp_path_factory) -> tuple[Path, Path]:
    """The directories of a quantised model and of the plain one with the same numbers."""
    directory = tmp_path_factory.mktemp("mxfp4")
    quantized, plain = directory / "quantized", directory / "plain"
    save_mxfp4_models(hf_model_dir("gpt_oss"), quantized, plain)
    return quantized, plain


@pytest.fixture(scope="module")
def reference(models) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        models[1], attn_implementation="eager", dtype=torch.float32
    )


@pytest.mark.parametrize("quantization", ["auto", "mxfp4"])
def test_logits_equal_transformers(quantization, models, reference, compare, paged_model) -> None:
    model: Any = load_model(models[0], overrides=ConfigOverrides(quantization=quantization)).model

    def want(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return reference(torch.tensor([tokens])).logits[0]

    assert model.model.layers[0].mlp.down.weight.dtype == torch.uint8
    compare(paged_model(model), want)


def test_other_formats_are_refused(hf_model_dir) -> None:
    overrides = ConfigOverrides(quantization="fp8")
    with pytest.raises(ModelLoadError, match="experts of this architecture are plain or MXFP4"):
        load_model(hf_model_dir("gpt_oss"), load_format="dummy", overrides=overrides)


def test_random_weights_are_small_numbers(models, paged_model) -> None:
    model = load_model(models[0], load_format="dummy").model

    logits = paged_model(model).step({"a": [1, 2, 3]})["a"]

    assert logits.isfinite().all()


def test_the_kernels_compute_the_same(
    models, reference, paged_model, triton_interpreter, monkeypatch
) -> None:
    """In Triton's interpreter here: a prompt longer than the window, then tokens that come one by
    one."""
    from kvasir_engine.attention import backends
    from kvasir_engine.attention.triton_backend import TritonAttention
    from kvasir_engine.layers import fused

    model: Any = load_model(models[0], dtype="float32", device=DEVICE).model
    monkeypatch.setattr(fused, "kernels_run_on", lambda _: True)
    backend = TritonAttention(DEVICE, multiprocessors=2)
    monkeypatch.setattr(backends, "make_backends", lambda specs, _: [backend] * len(specs))
    tokens = [7 * i % 160 for i in range(35)]
    paged = paged_model(model)
    got = [paged.step({"a": tokens[:33]})["a"]]
    got += [paged.step({"a": [token]})["a"] for token in tokens[33:]]

    with torch.inference_mode():
        want = reference(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.cat(got), want, atol=1e-4, rtol=1e-4)
