"""Check that a deployment's replicas fit on a cluster's GPUs, before any of them starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvasir.models.fit.devices import Device
from kvasir.models.fit.estimate import Fit, Workload
from kvasir.models.fit.fit_plan import Option, fit_option, overrides_of, workload
from kvasir.models.hf_config import ConfigError, parse_shape
from kvasir.models.kv_cache_dtype import FP8_KV
from kvasir.models.model_shape import ModelShape
from kvasir.quantity import format_bytes
from kvasir.resource.llmdeployment import Spec

_CPU_BYTES = 1 << 50
"""A CPU's memory is the container's limit, which the cluster itself enforces."""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Facts about a model that a finished download reports."""

    config: Mapping[str, Any]
    """The model's config.json, or the fields of it that determine the size."""
    weight_bytes: int | None = None
    """Bytes of all its safetensors files."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """Answer to whether a replica fits, and one sentence with the numbers it rests on."""

    fits: bool | None
    """True if it fits; None when it cannot be told."""
    message: str
    weights_bytes: int | None = None
    """Bytes of the weights of one whole replica, over all of its GPUs."""
    kv_tokens: int | None = None
    """Tokens that one replica's KV cache holds."""
    kv_dtype: str | None = None
    """Type of its keys and values."""
    suggested_tensor: int | None = None
    """The fewest GPUs for one replica; None when no number is enough, or none is needed."""


def fits(
    spec: Spec,
    model: CheckpointFacts,
    gpu_memory_bytes: int | None,
    gpus_per_node: int | None = None,
    capability: tuple[int, int] | None = None,
) -> FitResult:
    """Return whether one replica of `spec` fits on GPUs of `gpu_memory_bytes` each and of compute
    capability `capability`, on a node that has `gpus_per_node` of them; None = not known. With
    parallelism.tensor auto the answer is for `suggested_tensor` GPUs."""
    try:
        shape = parse_shape(overrides_of(spec).apply(model.config))
    except ConfigError as error:
        return FitResult(None, f"The model's size cannot be told from its config.json: {error}.")
    work = replace(workload(spec.engine), checkpoint_bytes=model.weight_bytes)
    tensor: int | str = spec.parallelism.tensor
    wanted = tensor if isinstance(tensor, int) else None
    if not spec.resources.gpus and wanted is not None:
        return _on_cpu(shape, work, wanted)
    if gpu_memory_bytes is None:
        return FitResult(
            None,
            "The memory of the cluster's GPUs is not known: let the operator read node labels"
            " (nvidia.com/gpu.memory) or give it a resource profile.",
        )
    device = Device("GPU", gpu_memory_bytes, capability=capability)
    return _judge(fit_option(shape, device, work, wanted), wanted, gpus_per_node)


def _on_cpu(shape: ModelShape, work: Workload, tensor: int) -> FitResult:
    option = fit_option(shape, Device("cpu", _CPU_BYTES, is_gpu=False), work, tensor)
    if option.fit is None:
        return FitResult(False, f"Does not fit: {option.problem}.")
    weights = option.fit.weight_bytes * tensor
    message = f"Weights of {format_bytes(weights)} and {_cache(option.fit)}."
    return FitResult(True, message, weights, option.fit.kv_tokens, option.fit.kv_dtype)


def _judge(option: Option, wanted: int | None, gpus_per_node: int | None) -> FitResult:
    fit, suggested = option.fit, option.suggested
    if fit is None:
        return FitResult(False, f"Does not fit: {option.problem}.", suggested_tensor=suggested)
    weights = fit.weight_bytes * fit.tensor_parallel
    of = format_bytes(fit.memory_bytes)
    gpus = f"1 GPU of {of}" if fit.tensor_parallel == 1 else f"{fit.tensor_parallel} GPUs of {of}"
    problem = option.problem
    if problem is None and gpus_per_node is not None and fit.tensor_parallel > gpus_per_node:
        problem = (
            f"no node has more than {gpus_per_node} GPUs;"
            " use GPUs with more memory, or a quantised model"
        )
    if problem is None and wanted is None and suggested is None:
        problem = "no number of GPUs that its heads allow is enough; lower maxModelLen"
    size = f"weights of {format_bytes(weights)}"
    if problem is not None:
        message = f"Does not fit on {gpus} ({size}): {problem}."
        return FitResult(False, message, weights, 0, fit.kv_dtype, suggested)
    message = f"Fits on {gpus}: {size}, {_cache(fit)}, {_room(option, fit)}."
    return FitResult(True, message, weights, fit.kv_tokens, fit.kv_dtype, suggested)


def _cache(fit: Fit) -> str:
    """Return what the KV cache holds, in words."""
    dtype = " in fp8" if fit.kv_dtype == FP8_KV else ""
    return f"a KV cache of {fit.kv_tokens} tokens{dtype}"


def _room(option: Option, fit: Fit) -> str:
    """Return what the KV cache has room for, in words."""
    if fit.longest_context >= fit.max_model_len:
        return f"{fit.max_concurrency:.1f} sequences of {fit.max_model_len}"
    short = f"the longest context {fit.longest_context} of the model's {fit.max_model_len}"
    if option.suggested is None:
        return short
    return f"{short} ({option.suggested} GPUs hold all of it)"
