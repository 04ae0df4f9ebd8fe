"""Step 3: check that one replica fits on the GPUs there are, and choose their number."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from kvasir.kube.objects import annotation
from kvasir.models.fit.replica_fit import CheckpointFacts, FitResult, fits
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir.resource.gpus.resources_spec import NVIDIA
from kvasir_operator.objects import short_hash
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.model_download.job_state import CONFIG_ANNOTATION, Download
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.spec_facts import device_of

FITTED = "kvasir.dev/fitted"
"""Annotation of the Deployment: a hash of all that its number of GPUs was chosen for, once."""
_REASONS = {True: Reason.FITS, False: Reason.DOES_NOT_FIT, None: Reason.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUFit(StepResult):
    """Contribution of the fit; engines are blocked that do not fit."""

    tensor: int
    """GPUs of one replica, or processes of one without."""


def fit_gpus(inputs: PlanInputs, download: Download | None) -> GPUFit:
    """Set Fits and status.fit, and choose the number of GPUs."""
    wanted = inputs.spec.parallelism.tensor
    fixed = 1 if wanted == "auto" else wanted
    kind = inputs.spec.engine.type
    if kind == "custom":
        told = "The memory that an engine of type custom needs is not estimated."
        return GPUFit(tensor=fixed, conditions=_condition(True, Reason.NOT_NEEDED, told))
    if device_of(inputs.spec) != "cuda":
        idle = inputs.spec.resources.gpus
        told = "It computes nothing on its GPUs." if idle else "It runs without GPUs."
        met = _condition(True, Reason.NOT_NEEDED, told)
        return GPUFit(tensor=fixed, conditions=met)
    facts = _facts(download)
    if facts is None:
        message = "The model's config.json is not known to the operator."
        if wanted == "auto":
            message = "The number of GPUs is chosen when the model's config.json is known."
        unknown = _condition(None, Reason.UNKNOWN, message)
        return GPUFit(tensor=fixed, conditions=unknown, blocked=wanted == "auto")
    hardware = inputs.observed.hardware
    fit = fits(
        inputs.spec,
        facts,
        hardware.memory_bytes,
        hardware.gpus_per_node or None,
        hardware.capability,
    )
    tensor, fit = _choose(inputs, fit) if wanted == "auto" else (fixed, fit)
    if kind != "kvasir":
        fit = _estimate(fit, kind, certain=wanted == "auto")
    return GPUFit(
        tensor=tensor,
        conditions=_condition(fit.fits, _REASONS[fit.fits], fit.message),
        status={"fit": _fit_status(fit, tensor)},
        blocked=fit.fits is False or (fit.fits is None and wanted == "auto"),
    )


def _estimate(fit: FitResult, kind: str, *, certain: bool) -> FitResult:
    """Say of another engine that the numbers are of Kvasir's: where it would not fit, the other one
    may still, unless a number of GPUs is to be chosen by it."""
    message = f"An estimate by the memory that Kvasir's engine needs, not {kind}'s: {fit.message}"
    told = fit.fits if fit.fits or certain else None
    return replace(fit, fits=told, message=message)


def fitted_for(inputs: PlanInputs) -> str:
    """Hash all that a chosen number of GPUs depends on, but for the cluster's hardware."""
    spec = inputs.spec
    config, gpus = spec.engine.config.model_dump(), spec.resources.gpus
    parts: list[object] = [inputs.storage.model, config, gpus]
    formats = (spec.model.quantization, spec.engine.kv_cache_dtype)
    # Hashed only where they are set: what runs without them keeps its number of GPUs.
    parts += [formats] if formats != ("auto", "auto") else []
    kind = spec.resources.limits.gpu_resource
    return short_hash([*parts, kind] if kind != NVIDIA else parts)


def _choose(inputs: PlanInputs, fit: FitResult) -> tuple[int, FitResult]:
    """Choose the number of GPUs for `auto`: the one that runs, since other nodes are no reason to
    restart engines; else the smallest that is enough."""
    live = inputs.observed.deployment
    if live is not None and annotation(live, FITTED) == fitted_for(inputs):
        container = live["spec"]["template"]["spec"]["containers"][0]
        limits = (container.get("resources") or {}).get("limits") or {}
        return int(limits.get(inputs.spec.resources.limits.gpu_resource) or 1), fit
    limit, name = inputs.spec.resources.gpus, inputs.spec.resources.limits.gpu_resource
    tensor = fit.suggested_tensor or 1
    if limit and tensor > limit:
        message = (
            f"It needs {tensor} GPUs, more than resources.limits {name} {limit};"
            " raise that or lower engine.config.maxModelLen."
        )
        return tensor, FitResult(
            False, message, fit.weights_bytes, 0, fit.kv_dtype, fit.suggested_tensor
        )
    return tensor, fit


def _facts(download: Download | None) -> CheckpointFacts | None:
    """Return the download's report of the model: the last one, or as it was noted on its Job."""
    if download is None:
        return None
    progress = download.progress
    if progress is not None and progress.config is not None:
        return CheckpointFacts(progress.config, progress.weight_bytes)
    noted = annotation(download.job, CONFIG_ANNOTATION) if download.job is not None else ""
    if not noted:
        return None
    model: dict[str, Any] = json.loads(noted)
    return CheckpointFacts(model["config"], model.get("weightsBytes"))


def _condition(status: bool | None, reason: Reason, message: str) -> tuple[ConditionValue]:
    return (ConditionValue(ConditionType.FITS, status, reason, message),)


def _fit_status(fit: FitResult, tensor: int) -> dict[str, object]:
    found: dict[str, object] = {"tensor": tensor}
    if fit.weights_bytes is not None:
        found["weightsGiB"] = round(fit.weights_bytes / 2**30, 2)
    if fit.kv_tokens is not None:
        found["kvTokens"] = fit.kv_tokens
    if fit.kv_dtype is not None:
        found["kvCacheDtype"] = fit.kv_dtype
    return found
