"""Plans: how a model fits on devices, as it is asked for and as it should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvasir.models.config_overrides import ConfigOverrides, overrides_in
from kvasir.models.fit.devices import Device
from kvasir.models.fit.estimate import Fit, Workload, estimate_fit, suggest_tensor_parallel
from kvasir.models.model_shape import ModelShape
from kvasir.quantity import format_bytes
from kvasir.resource import LLMDeployment
from kvasir.resource.engine_spec import Engine
from kvasir.resource.llmdeployment import Spec

CPU_KV_BYTES = 1 << 30
"""KV memory that an engine takes on a CPU when it is not told."""


@dataclass(frozen=True, slots=True)
class Option:
    """A model on one number of devices of one kind."""

    device: Device
    fit: Fit | None
    """Fit on that number of devices; None when the model's heads cannot be divided over it."""
    suggested: int | None
    """The smallest number on which one sequence of the wanted length fits, None if none does."""
    problem: str | None
    """Reason for which it does not fit, and the remedy; None when it fits."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One model and how it fits on each device that was asked about."""

    name: str
    shape: ModelShape
    replicas: int
    options: list[Option]

    @property
    def fits(self) -> bool:
        """True if it fits on at least one of the devices."""
        return any(option.problem is None for option in self.options)

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values; sizes are bytes on each device."""
        return {
            "name": self.name,
            "architecture": self.shape.architecture,
            "parameters": self.shape.num_parameters,
            "activeParameters": self.shape.num_active_parameters,
            "parametersExact": self.shape.parameters_exact,
            "dtype": self.shape.dtype,
            "quantization": self.shape.quantization_method,
            "replicas": self.replicas,
            "fits": self.fits,
            "options": [_option_json(option) for option in self.options],
        }


def plan_model(
    name: str,
    shape: ModelShape,
    devices: list[Device],
    work: Workload,
    *,
    tensor_parallel: int | None = None,
    replicas: int = 1,
) -> Plan:
    """Return how `shape` fits on `tensor_parallel` of each device, by default on as many as
    suggested."""
    options = [fit_option(shape, device, work, tensor_parallel) for device in devices]
    return Plan(name, shape, replicas, options)


def plan_deployment(deployment: LLMDeployment, shape: ModelShape, device: Device) -> Plan:
    """Return how `deployment` fits on the device it shall run on."""
    tensor: int | str = deployment.spec.parallelism.tensor
    return plan_model(
        deployment.name,
        shape,
        [device],
        workload(deployment.spec.engine),
        tensor_parallel=tensor if isinstance(tensor, int) else None,
        replicas=deployment.spec.replicas,
    )


def overrides_of(spec: Spec) -> ConfigOverrides:
    """Return what `spec` puts into the model's config.json. Raises ConfigError."""
    return replace(overrides_in(spec.engine.args), quantization=spec.model.quantization)


def workload(engine: Engine) -> Workload:
    """Return the settings of `engine` on which its memory depends."""
    names = set(Workload.__dataclass_fields__)
    wanted = engine.config.model_dump(exclude_none=True, include=names)
    if wanted["dtype"] == "auto":
        del wanted["dtype"]
    return Workload(**wanted, kv_cache_dtype=engine.kv_cache_dtype)


def fit_option(
    shape: ModelShape, device: Device, work: Workload, tensor_parallel: int | None
) -> Option:
    """Return how `shape` fits on `tensor_parallel` of `device`, by default on as many as
    suggested."""
    own = replace(work if device.is_gpu else _on_cpu(work), capability=device.capability)
    suggested = suggest_tensor_parallel(shape, device.memory_bytes, own) if device.is_gpu else 1
    try:
        size = tensor_parallel or suggested or 1
        fit = estimate_fit(shape, device.memory_bytes, size, own)
    except ValueError as error:
        return Option(device, None, suggested, str(error))
    return Option(device, fit, suggested, _problem(shape, fit, own, suggested))


def _on_cpu(work: Workload) -> Workload:
    return replace(
        work,
        dtype=work.dtype or "float32",
        gpu_memory_utilization=1.0,
        kv_cache_memory_bytes=work.kv_cache_memory_bytes or CPU_KV_BYTES,
    )


def _problem(shape: ModelShape, fit: Fit, work: Workload, suggested: int | None) -> str | None:
    own = shape.max_position_embeddings
    if fit.fits:
        return None
    if fit.max_model_len > own:
        return f"{fit.max_model_len} tokens are more than the model's own {own}; lower maxModelLen"
    budget = int(fit.memory_bytes * work.gpu_memory_utilization)
    if fit.longest_context == 0:
        needed = fit.weight_bytes + fit.reserve_bytes + max(0, fit.kv_bytes)
        reason = f"{format_bytes(needed)} are needed of {format_bytes(budget)} on each device"
    else:
        reason = (
            f"the KV cache holds a sequence of {fit.longest_context} tokens,"
            f" not of {fit.max_model_len}"
        )
    return f"{reason}; {_remedy(fit, work, suggested)}"


def _remedy(fit: Fit, work: Workload, suggested: int | None) -> str:
    if suggested is not None and suggested > fit.tensor_parallel:
        return f"use {suggested} GPUs with parallelism.tensor {suggested}"
    if fit.longest_context:
        return f"lower maxModelLen to {fit.longest_context}"
    if work.kv_cache_memory_bytes is not None:
        return "lower kvCacheMemoryBytes, or use a device with more memory"
    return "use a device with more memory, or a quantised model"


def _option_json(option: Option) -> dict[str, Any]:
    fit = option.fit
    sizes = (
        {
            "tensorParallel": fit.tensor_parallel,
            "weightBytes": fit.weight_bytes,
            "reserveBytes": fit.reserve_bytes,
            "kvBytes": max(0, fit.kv_bytes),
            "kvCacheDtype": fit.kv_dtype,
            "kvBytesPerToken": fit.kv_bytes_per_token,
            "kvTokens": fit.kv_tokens,
            "maxModelLen": fit.max_model_len,
            "maxConcurrency": round(fit.max_concurrency, 2),
            "longestContext": fit.longest_context,
        }
        if fit is not None
        else {}
    )
    return {
        "device": option.device.name,
        "memoryBytes": option.device.memory_bytes,
        **sizes,
        "suggestedTensorParallel": option.suggested,
        "fits": option.problem is None,
        "problem": option.problem,
    }
