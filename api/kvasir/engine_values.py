"""Values that an engine's settings take, as flags of `kvasir serve` and as an LLMDeployment's
fields. No pydantic."""

from __future__ import annotations

from typing import Final, Literal

Device = Literal["auto", "cpu", "cuda", "sim"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
QuantizationName = Literal["auto", "fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4"]
KVCacheDtype = Literal["auto", "fp8", "fp8_e4m3"]
"""Type of keys and values; fp8 and fp8_e4m3 are the same."""
LoadFormat = Literal["auto", "safetensors", "dummy"]
BlockSize = Literal[8, 16, 32, 64, 128]
"""Tokens of a KV block."""

MIN_MEMORY_UTILIZATION, MAX_MEMORY_UTILIZATION = 0.05, 1.0
"""Share of a GPU's memory."""
MIN_MODEL_LEN, MAX_MODEL_LEN = 2, 16_777_216
"""Tokens of the longest sequence: one of a prompt and one of output at least."""
MAX_NUM_SEQS = 4096
MAX_BATCHED_TOKENS = 1_048_576
GPU_FAULT_STATUS: Final = 3
"""Exit status of `kvasir serve` after a fault of its GPU."""
MAX_SEED = 2**63 - 1
