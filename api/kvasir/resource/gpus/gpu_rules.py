"""Rules between a spec's GPUs, device and tensor parallelism, for API servers and for files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvasir.resource.strict_model import rule

_LIMITS = "self.resources.limits"
_CLAIM = "self.resources.gpuClaim"
_BY_CLAIM = f"has({_CLAIM})"
_SOME = (
    f"({_BY_CLAIM} || (has({_LIMITS})"
    f" && {_LIMITS}.exists(it, it.contains('/') && string({_LIMITS}[it]) != '0')))"
)
_AUTO = "type(self.parallelism.tensor) == string"
_TENSOR = "string(self.parallelism.tensor)"

_DIFFER = (
    "the GPUs of resources (limits or gpuClaim.count) and parallelism.tensor differ; set both to"
    " the GPUs of one replica"
)
_CUDA = (
    "engine.config.device cuda needs resources.limits nvidia.com/gpu, another resource of GPUs"
    " there, or resources.gpuClaim"
)
_CPU = (
    "engine.config.device cpu uses no GPU; remove resources.limits nvidia.com/gpu, or what else"
    " asks for GPUs"
)
_AUTO_CLAIM = (
    "parallelism.tensor auto chooses a number for resources.limits; write a number with"
    " resources.gpuClaim"
)

GPU_RULES = (
    rule(
        f"{_AUTO} || ((!{_BY_CLAIM} || string({_CLAIM}.count) == {_TENSOR}) && (!has({_LIMITS})"
        f" || {_LIMITS}.all(it, !it.contains('/') || string({_LIMITS}[it]) in ['0', {_TENSOR}])))",
        _DIFFER,
    ),
    rule(f"self.engine.config.device != 'cuda' || {_AUTO} || {_SOME} || has(self.profile)", _CUDA),
    rule(f"self.engine.config.device != 'cpu' || !{_SOME}", _CPU),
    rule(
        f"!(self.engine.config.device in ['cpu', 'sim']) || !({_AUTO})",
        "parallelism.tensor auto is for device cuda; write a number with cpu and sim",
    ),
    rule(f"!{_BY_CLAIM} || !({_AUTO})", _AUTO_CLAIM),
)
"""CEL rules of the spec."""


def gpu_problems(spec: Any) -> Iterator[str]:
    """Yield a sentence for each of these rules that a spec breaks."""
    gpus, tensor = spec.resources.gpus, spec.parallelism.tensor
    device = spec.engine.config.device
    if tensor == "auto" and spec.resources.gpu_claim is not None:
        yield _AUTO_CLAIM
    if gpus and tensor not in ("auto", gpus):
        yield (
            f"resources ask for {gpus} GPUs ({spec.resources.gpu_words}) but parallelism.tensor is"
            f" {tensor}; set both to the GPUs of one replica"
        )
    if device == "cuda" and not gpus and tensor != "auto" and spec.profile is None:
        yield _CUDA
    if device == "cpu" and gpus:
        yield _CPU
    if device in ("cpu", "sim") and tensor == "auto":
        yield f"parallelism.tensor auto is for device cuda; write a number with {device}"
