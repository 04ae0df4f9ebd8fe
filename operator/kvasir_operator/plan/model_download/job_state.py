"""State of a model's download, read from its Job and the Job's pod."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from kvasir.kube.objects import (
    Object,
    annotation,
    condition,
    container_status,
    holds,
    label,
    name_of,
    parse_time,
)
from kvasir.model_uri import ModelURI
from kvasir.models.download.progress import Progress, parse_progress
from kvasir.resource import labels
from kvasir.resource.spec import Spec
from kvasir_operator.objects import short_hash
from kvasir_operator.plan.observed import Observed
from kvasir_operator.plan.step import PlanInputs

RETRY_AFTER = timedelta(minutes=5)
"""Time that a Job that failed for a passing reason stays before a new one is made."""
SECRET_ANNOTATION = "kvasir.dev/secret"  # noqa: S105 - an annotation's name
POD_ANNOTATION = "kvasir.dev/download-pod"
"""Annotation of the Job: a hash of how its pod was asked for."""
CONFIG_ANNOTATION = "kvasir.dev/model-config"
"""Annotation of the Job: its model's config.json and size, kept for as long as the model."""
_HASH = 7  # a Job's name may have 63 characters, of which the deployment's has up to 52


class JobState(Enum):
    """State of the Job that downloads the model that is wanted now."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Download:
    """The Job that downloads the model, with its newest pod."""

    state: JobState
    job: Object | None = None
    pod: Object | None = None
    progress: Progress | None = None
    """Last report: the running pod's, or the one in its termination message."""


def job_name(inputs: PlanInputs) -> str:
    """Return the name that stands for model, revision, volume and trust in remote code."""
    return f"{inputs.name}{job_suffix(inputs.spec, inputs.observed.claim)}"


def job_suffix(spec: Spec, claim: Object | None) -> str:
    """Return the end of a Job's name: the same for every deployment that wants the same model on
    the same volume."""
    model = spec.model
    volume = claim["metadata"]["uid"] if claim is not None else ""
    content = [str(model.parsed_uri), model.revision, volume]
    if model.trust_remote_code:
        content.append("code")
    return f"-dl-{short_hash(content, _HASH)}"


def adapter_job_name(inputs: PlanInputs, uri: ModelURI) -> str:
    """Return the name that stands for a LoRA adapter's URI and the volume."""
    claim = inputs.observed.claim
    volume = claim["metadata"]["uid"] if claim is not None else ""
    return f"{_adapter_prefix(inputs)}{short_hash([str(uri), volume], _HASH)}"


def is_adapter_job(inputs: PlanInputs, job: Object) -> bool:
    """Tell if one of the deployment's Jobs downloads an adapter, not the model."""
    return name_of(job).startswith(_adapter_prefix(inputs))


def _adapter_prefix(inputs: PlanInputs) -> str:
    return f"{inputs.name}-la-"


def download_of(observed: Observed, name: str) -> Download:
    """Return the state of the Job called `name`."""
    job = next((each for each in observed.jobs if name_of(each) == name), None)
    if job is None:
        return Download(JobState.ABSENT)
    pods = [pod for pod in observed.job_pods if label(pod, "job-name") == name]
    pod = max(pods, key=lambda it: it["metadata"].get("creationTimestamp", ""), default=None)
    progress = observed.progress.get(name) or (_last_words(pod) if pod is not None else None)
    state = JobState.FAILED if holds(job, "Failed") else JobState.RUNNING
    return Download(JobState.DONE if holds(job, "Complete") else state, job, pod, progress)


def retry_delay(inputs: PlanInputs, job: Object, progress: Progress | None) -> float | None:
    """Return the seconds until a download that failed is worth another Job; None = never."""
    if annotation(job, SECRET_ANNOTATION) != secret_version(inputs):
        return 0.0
    if progress is not None and progress.permanent:
        return None
    since = condition(job, "Failed").get("lastTransitionTime")
    rest = parse_time(since) + RETRY_AFTER - inputs.observed.now if since else RETRY_AFTER
    return max(0.0, rest.total_seconds())


def note_of(download: Download | None) -> tuple[Object, dict[str, str]] | None:
    """Return the Job and the annotation that keeps its pod's report of the model's size beyond the
    pod's life; None when there is nothing new to keep."""
    if download is None or download.job is None or download.progress is None:
        return None
    config = download.progress.config
    if config is None or annotation(download.job, CONFIG_ANNOTATION):
        return None
    model = {"config": config, "weightsBytes": download.progress.weight_bytes}
    return download.job, {CONFIG_ANNOTATION: json.dumps(model, separators=(",", ":"))}


def secret_version(inputs: PlanInputs) -> str:
    """Return what stands for the download's Secret and the operator's variables for all downloads:
    with other ones a failed download may succeed. "" when there are neither."""
    secret, variables = inputs.spec.model.secret_ref, inputs.settings.download_env
    version = (inputs.observed.secrets.get(secret.name) or "") if secret is not None else ""
    return f"{version} {short_hash(dict(variables))}" if variables else version


def _last_words(pod: Object) -> Progress | None:
    """Return the report in the termination message of the download's container, if it is one."""
    ended = (container_status(pod, labels.DOWNLOAD).get("state") or {}).get("terminated") or {}
    try:
        return parse_progress(ended.get("message") or "")
    except ValueError:
        return None
