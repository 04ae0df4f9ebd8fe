"""Step 3: does one replica fit on the GPUs there are, and on how many?"""

from __future__ import annotations

import json
from typing import Any

from kvasir.models.fit.replica_fit import CheckpointFacts, FitResult, fits
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.objects import annotation, short_hash
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.model_download.job_state import CONFIG_ANNOTATION, Download
from kvasir_operator.spec_facts import Storage, device_of

FITTED = "kvasir.dev/fitted"
"""On the Deployment: what its number of GPUs was chosen for. It is chosen once for each."""


def fit(draft: Draft, storage: Storage, download: Download | None) -> None:
    """Sets Fits, status.fit and the number of GPUs; what does not fit is not started."""
    spec = draft.deployment.spec
    wanted = spec.parallelism.tensor
    draft.tensor = wanted if isinstance(wanted, int) else 1
    if device_of(spec) != "cuda":
        draft.tensor = 0 if draft.tensor == 1 else draft.tensor
        _set(draft, True, Reason.NOT_NEEDED, "It runs without GPUs.")
        return
    facts = _facts(download)
    if facts is None:
        _unknown(draft, wanted == "auto")
        return
    hardware = draft.observed.hardware
    result = fits(spec, facts, hardware.memory_bytes, hardware.gpus_per_node or None)
    if wanted == "auto":
        result = _choose(draft, storage, result)
    draft.status["fit"] = _fit_status(result, draft.tensor)
    if result.fits is False:
        draft.blocked = True
        _set(draft, False, Reason.DOES_NOT_FIT, result.message)
    elif result.fits is None:
        draft.blocked = draft.blocked or wanted == "auto"
        _set(draft, None, Reason.UNKNOWN, result.message)
    else:
        _set(draft, True, Reason.FITS, result.message)


def fitted_for(draft: Draft, storage: Storage) -> str:
    """Stands for all that a chosen number of GPUs depends on, but for the cluster's hardware."""
    spec = draft.deployment.spec
    return short_hash([storage.model, spec.engine.config.model_dump(), spec.resources.limits.gpus])


def _choose(draft: Draft, storage: Storage, result: FitResult) -> FitResult:
    """The number of GPUs for `auto`: the one that runs, since other nodes are no reason to restart
    engines; else the smallest that is enough."""
    live = draft.observed.deployment
    if live is not None and annotation(live, FITTED) == fitted_for(draft, storage):
        container = live["spec"]["template"]["spec"]["containers"][0]
        limits = (container.get("resources") or {}).get("limits") or {}
        draft.tensor = int(limits.get("nvidia.com/gpu") or 1)
        return result
    most = draft.deployment.spec.resources.limits.gpus
    draft.tensor = result.suggested_tensor or 1
    if most and draft.tensor > most:
        message = (
            f"It needs {draft.tensor} GPUs, more than resources.limits nvidia.com/gpu {most};"
            " raise that or lower engine.config.maxModelLen."
        )
        return FitResult(False, message, result.weights_bytes, 0, result.suggested_tensor)
    return result


def _facts(download: Download | None) -> CheckpointFacts | None:
    """What the download told of the model: just now, or as it was noted on its Job."""
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


def _unknown(draft: Draft, needed: bool) -> None:
    if needed:
        draft.blocked = True
        message = "The number of GPUs is chosen when the model's config.json is known."
    else:
        message = "The model's config.json is not known to the operator."
    _set(draft, None, Reason.UNKNOWN, message)


def _set(draft: Draft, status: bool | None, reason: Reason, message: str) -> None:
    draft.conditions.set(ConditionType.FITS, status, reason, message)


def _fit_status(result: FitResult, tensor: int) -> dict[str, object]:
    found: dict[str, object] = {"tensor": tensor}
    if result.weights_bytes is not None:
        found["weightsGiB"] = round(result.weights_bytes / 2**30, 2)
    if result.kv_tokens is not None:
        found["kvTokens"] = result.kv_tokens
    return found
