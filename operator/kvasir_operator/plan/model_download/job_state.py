"""How the download of a model stands, read from its Job and that one's pod."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from kvasir.models.download.progress import Progress, parse_progress
from kvasir.resource import labels
from kvasir_operator.objects import (
    Object,
    annotation,
    condition,
    container_status,
    holds,
    label,
    name_of,
    parse_time,
    short_hash,
)
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.observed import Observed

RETRY_AFTER = timedelta(minutes=5)
"""How long a Job that failed for a passing reason stays before a new one is made."""
SECRET_ANNOTATION = "kvasir.dev/secret"  # noqa: S105 - an annotation's name
CONFIG_ANNOTATION = "kvasir.dev/model-config"
"""On the Job: what its model's config.json says of its size, kept for as long as the model."""
_HASH = 7  # a Job's name may have 63 characters, of which the deployment's has up to 52


class JobState(Enum):
    """Of the Job that downloads the model that is wanted now."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Download:
    """State of the Job."""

    state: JobState
    job: Object | None = None
    pod: Object | None = None
    """Its newest pod."""
    progress: Progress | None = None
    """Its last words, or what it says while it runs."""


def job_name(draft: Draft) -> str:
    """One name for each model, revision and volume, and whether its code is wanted too."""
    model, claim = draft.deployment.spec.model, draft.observed.claim
    volume = claim["metadata"]["uid"] if claim is not None else ""
    content = [str(model.parsed_uri), model.revision, volume]
    if model.trust_remote_code:
        content.append("code")
    return f"{draft.name}-dl-{short_hash(content, _HASH)}"


def download_of(observed: Observed, name: str) -> Download:
    """How the Job called `name` stands."""
    job = next((each for each in observed.jobs if name_of(each) == name), None)
    if job is None:
        return Download(JobState.ABSENT)
    pods = [pod for pod in observed.job_pods if label(pod, "job-name") == name]
    pod = max(pods, key=lambda it: it["metadata"].get("creationTimestamp", ""), default=None)
    progress = observed.progress.get(name) or (_last_words(pod) if pod is not None else None)
    if holds(job, "Complete"):
        return Download(JobState.DONE, job, pod, progress)
    if holds(job, "Failed"):
        return Download(JobState.FAILED, job, pod, progress)
    return Download(JobState.RUNNING, job, pod, progress)


def is_due_again(draft: Draft, download: Download) -> bool:
    """Whether a failed download is worth another Job now; sets when to look again."""
    job = download.job
    assert job is not None  # noqa: S101 - a failed one exists
    if annotation(job, SECRET_ANNOTATION) != secret_version(draft):
        return True
    if download.progress is not None and download.progress.permanent:
        return False
    since = condition(job, "Failed").get("lastTransitionTime")
    rest = (
        parse_time(since) + RETRY_AFTER - draft.observed.now if since else RETRY_AFTER
    ).total_seconds()
    if rest > 0:
        draft.look_again(rest)
    return rest <= 0


def note_of(download: Download | None) -> tuple[Object, dict[str, str]] | None:
    """The Job, and the annotation that keeps what its pod told of the model beyond the pod's
    life; None when there is nothing new to keep."""
    if download is None or download.job is None or download.progress is None:
        return None
    config = download.progress.config
    if config is None or annotation(download.job, CONFIG_ANNOTATION):
        return None
    model = {"config": config, "weightsBytes": download.progress.weight_bytes}
    return download.job, {CONFIG_ANNOTATION: json.dumps(model, separators=(",", ":"))}


def secret_version(draft: Draft) -> str:
    """Of the Secret that the download is given, and of the operator's variables for all downloads:
    with other ones a download that failed may succeed. "" when there are neither."""
    secret, variables = draft.deployment.spec.model.secret_ref, draft.settings.download_env
    version = (draft.observed.secrets.get(secret.name) or "") if secret is not None else ""
    return f"{version} {short_hash(dict(variables))}" if variables else version


def _last_words(pod: Object) -> Progress | None:
    """The termination message of the download's container, if it is one of ours."""
    ended = (container_status(pod, labels.DOWNLOAD).get("state") or {}).get("terminated") or {}
    try:
        return parse_progress(ended.get("message") or "")
    except ValueError:
        return None
