"""Published configs on a cluster's GPUs: whether they fit, and what would."""

from __future__ import annotations

from typing import Any

import pytest
from support.llama_config import LLAMA_8B

from kvasir.engine_values import KVCacheDtype
from kvasir.models.fit.gpu_table import GPUS, gpu_capability
from kvasir.models.fit.replica_fit import CheckpointFacts, FitResult, fits
from kvasir.resource import parse_documents
from kvasir.resource.llmdeployment import Spec

LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "head_dim": 128,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "vocab_size": 152064,
}
QWEN3_235B_A22B = QWEN3_30B_A3B | {
    "hidden_size": 4096,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_hidden_layers": 94,
}
FP8, AWQ, MXFP4 = (
    {"quantization_config": {"quant_method": method, **fields}}
    for method, fields in (
        ("fp8", {"activation_scheme": "static", "kv_cache_scheme": "static"}),
        ("awq", {"bits": 4}),
        ("mxfp4", {}),
    )
)
UNKNOWN = LLAMA_8B | {"model_type": "brandnew", "architectures": ["BrandNewForCausalLM"]}


def spec(gpus: int = 1, tensor: int | str | None = None, **config: Any) -> Spec:
    (deployment,) = parse_documents(
        f"""
apiVersion: kvasir.dev/v1alpha1
kind: LLMDeployment
metadata: {{name: m}}
spec:
  model: {{uri: "hf://org/model"}}
  resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
  parallelism: {{tensor: {tensor or gpus or 1}}}
  engine: {{config: {config}}}
""".replace("'", ""),
        "m.yaml",
    )
    return deployment.spec


def test_arguments_that_change_the_config_count() -> None:
    def judged(given: str) -> FitResult:
        plain = spec()
        engine = plain.engine.model_copy(update={"args": ["--hf-overrides", given]})
        asked = plain.model_copy(update={"engine": engine})
        return fits(asked, CheckpointFacts(LLAMA_70B), GPUS["h200"])

    assert judged('{"num_hidden_layers": 8}').fits
    result = judged("x")
    assert result.fits is None
    assert "--hf-overrides takes a JSON object" in result.message


@pytest.mark.parametrize(
    ("config", "asked", "gpu", "answer", "suggested"),
    [
        (LLAMA_8B, spec(), "h100", True, 1),
        (LLAMA_8B, spec(), "l4", True, 2),
        (LLAMA_8B, spec(), "t4", False, 4),
        (LLAMA_8B, spec(2, maxModelLen=8192), "t4", True, 2),
        (LLAMA_70B, spec(), "h200", False, 2),
        (LLAMA_70B, spec(2), "h100", True, 4),
        (LLAMA_70B, spec(4), "h100", True, 4),
        (LLAMA_70B | AWQ, spec(), "h100", True, 2),
        (QWEN3_30B_A3B, spec(), "a100-80", True, 1),
        (QWEN3_30B_A3B, spec(), "l40s", False, 2),
        (QWEN2_7B, spec(8), "h100", False, 1),
    ],
)
def test_published_models(
    config: dict[str, Any], asked: Spec, gpu: str, answer: bool, suggested: int
) -> None:
    result = fits(asked, CheckpointFacts(config), GPUS[gpu])
    assert (result.fits, result.suggested_tensor) == (answer, suggested), result.message


@pytest.mark.parametrize(
    ("config", "gpu", "kv", "suggested", "dtype"),
    [
        (LLAMA_70B, "h100", "auto", 4, "bfloat16"),
        (LLAMA_70B | FP8, "h100", "auto", 2, "fp8"),
        (LLAMA_70B | FP8, "a100-80", "auto", 2, "bfloat16"),
        (LLAMA_70B | AWQ, "h100", "auto", 2, "bfloat16"),
        (LLAMA_70B | AWQ, "h100", "fp8", 1, "fp8"),
        (LLAMA_70B | AWQ, "l4", "auto", 8, "bfloat16"),
        (LLAMA_70B | AWQ, "l4", "fp8_e4m3", 4, "fp8"),
        (QWEN3_235B_A22B, "h100", "auto", 8, "bfloat16"),
        (QWEN3_235B_A22B | FP8, "h100", "auto", 4, "fp8"),
        (QWEN3_235B_A22B | MXFP4, "h100", "auto", 2, "bfloat16"),
        (QWEN3_235B_A22B | MXFP4, "l40s", "fp8", 4, "fp8"),
    ],
)
def test_auto_counts_weights_and_cache_as_they_are_stored(
    config: dict[str, Any], gpu: str, kv: KVCacheDtype, suggested: int, dtype: str
) -> None:
    plain = spec(0, "auto")
    asked = plain.model_copy(
        update={"engine": plain.engine.model_copy(update={"kv_cache_dtype": kv})}
    )
    result = fits(asked, CheckpointFacts(config), GPUS[gpu], 8, gpu_capability(gpu))
    assert (result.fits, result.suggested_tensor) == (True, suggested), result.message
    assert result.kv_dtype == dtype
    assert ("tokens in fp8" in result.message) == (dtype == "fp8")


def test_a_cache_that_the_gpus_cannot_read_is_refused_with_the_reason() -> None:
    plain = spec(0, "auto")
    asked = plain.model_copy(
        update={"engine": plain.engine.model_copy(update={"kv_cache_dtype": "fp8"})}
    )
    refused = fits(asked, CheckpointFacts(LLAMA_8B), GPUS["a100-80"], 8, (8, 0))
    assert (refused.fits, refused.suggested_tensor) == (False, None)
    assert refused.message.endswith("this one has 8.0; take auto.")
    unknown = fits(asked, CheckpointFacts(LLAMA_8B), GPUS["h100"], 8)
    assert (unknown.fits, unknown.kv_dtype) == (True, "fp8")


def test_the_message_has_the_numbers_and_the_remedy() -> None:
    result = fits(spec(), CheckpointFacts(LLAMA_70B), GPUS["h100"])
    assert result.message == (
        "Does not fit on 1 GPU of 79.6 GiB (weights of 131.4 GiB): 137.0 GiB are needed of"
        " 71.7 GiB on each device; use 4 GPUs with parallelism.tensor 4."
    )
    assert result.weights_bytes == pytest.approx(131.4 * 2**30, rel=0.01)
    fitting = fits(spec(), CheckpointFacts(LLAMA_8B), GPUS["h100"])
    assert fitting.message.startswith("Fits on 1 GPU of 79.6 GiB: weights of 15.0 GiB, a KV cache")
    assert fitting.kv_tokens == 433_548
    short = fits(spec(2), CheckpointFacts(LLAMA_70B), GPUS["h100"])
    assert "of the model's 131072 (4 GPUs hold all of it)" in short.message


def test_no_node_has_that_many_gpus() -> None:
    result = fits(spec(4), CheckpointFacts(LLAMA_70B), GPUS["h100"], gpus_per_node=2)
    assert result.fits is False
    assert "no node has more than 2 GPUs" in result.message


def test_the_quantisation_that_is_asked_for_counts() -> None:
    facts, plain = CheckpointFacts(LLAMA_70B), spec(2, tensor=2)
    asked = plain.model_copy(
        update={"model": plain.model.model_copy(update={"quantization": "fp8"})}
    )
    half, whole = fits(asked, facts, GPUS["h100"]), fits(plain, facts, GPUS["h100"])
    assert half.weights_bytes is not None
    assert whole.weights_bytes is not None
    assert half.weights_bytes < 0.55 * whole.weights_bytes
    refused = fits(asked, CheckpointFacts(LLAMA_70B | AWQ), GPUS["h100"])
    assert refused.fits is None
    assert "--quantization fp8: the checkpoint's weights are awq" in refused.message


def test_an_unknown_memory_or_architecture_is_no_answer() -> None:
    unread = fits(spec(), CheckpointFacts(LLAMA_8B), None)
    assert unread.fits is None
    assert "resource profile" in unread.message
    mla = fits(spec(), CheckpointFacts(LLAMA_8B | {"kv_lora_rank": 512}), GPUS["h100"])
    assert mla.fits is None
    assert "multi-head latent attention is not supported" in mla.message


def test_an_unknown_family_is_taken_by_its_files() -> None:
    guessed = fits(spec(), CheckpointFacts(UNKNOWN), GPUS["a100-40"])
    assert guessed.fits is True
    weighed = fits(spec(), CheckpointFacts(UNKNOWN, 60 << 30), GPUS["a100-40"])
    assert weighed.fits is False
    assert weighed.weights_bytes == 60 << 30


def test_a_cpu_replica_is_not_measured_against_gpus() -> None:
    result = fits(spec(0), CheckpointFacts(LLAMA_8B), None)
    assert result.fits is True
    assert result.kv_tokens == 4096
