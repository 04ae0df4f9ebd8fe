"""Step 2: is the model where engines read it? If not, a Job brings it there."""

from __future__ import annotations

from kvasir.models.download.progress import Progress
from kvasir.quantity import format_bytes
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.objects import name_of
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.model_download.job_manifest import job_manifest
from kvasir_operator.plan.model_download.job_state import (
    Download,
    JobState,
    download_of,
    is_due_again,
    job_name,
)
from kvasir_operator.plan.model_download.storage import add_claim
from kvasir_operator.plan.pod_problems import pod_problem
from kvasir_operator.spec_facts import Storage

POLL_SECONDS = 5.0
"""Between two looks at a running download."""


def cache_model(draft: Draft, storage: Storage) -> Download | None:
    """Sets ModelCached and status.cache; engines wait until it is True."""
    set_condition = draft.conditions.set
    if not storage.cached:
        draft.deletions += draft.observed.jobs  # of a former model
    if storage.claim is None:
        set_condition(ConditionType.MODEL_CACHED, True, Reason.NOT_NEEDED, "It is in the image.")
        return None
    add_claim(draft)
    claim = draft.observed.claim
    if claim is None:
        _without_claim(draft, storage)
        return None
    if not storage.cached:
        message = f"It lies on claim {storage.claim}."
        set_condition(ConditionType.MODEL_CACHED, True, Reason.NOT_NEEDED, message)
        return None
    return _download(draft, storage.claim)


def _without_claim(draft: Draft, storage: Storage) -> None:
    draft.blocked = True
    cache = draft.deployment.spec.cache
    named = not storage.cached or (cache is not None and cache.pvc.claim_name is not None)
    if named:
        draft.look_again(30.0)  # Claims of others are not watched
        reason, message = (
            Reason.CLAIM_MISSING,
            (f"Claim {storage.claim!r} does not exist in namespace {draft.namespace}; create it."),
        )
    else:
        reason, message = Reason.DOWNLOAD_PENDING, "The volume claim is being made."
    draft.conditions.set(ConditionType.MODEL_CACHED, False, reason, message)


def _download(draft: Draft, claim: str) -> Download:
    name = job_name(draft)
    download = download_of(draft.observed, name)
    draft.deletions += [job for job in draft.observed.jobs if name_of(job) != name]
    if download.state is JobState.FAILED and is_due_again(draft, download):
        assert download.job is not None  # noqa: S101 - it failed
        draft.deletions.append(download.job)
        download = Download(JobState.ABSENT)
        draft.look_again(1.0)
    elif download.state is JobState.ABSENT and not draft.conditions.is_false(
        ConditionType.ACCEPTED
    ):
        draft.manifests.append(job_manifest(draft, name, claim))
    _report(draft, download)
    return download


def _report(draft: Draft, download: Download) -> None:
    progress = download.progress
    if progress is not None:
        draft.status["cache"] = _cache_status(progress)
    if download.state is JobState.DONE:
        message = f"{format_bytes(progress.total_bytes)} are there." if progress else ""
        draft.conditions.set(ConditionType.MODEL_CACHED, True, Reason.CACHED, message)
        return
    draft.blocked = True
    reason, message = _not_yet(draft, download)
    draft.conditions.set(ConditionType.MODEL_CACHED, False, reason, message)


def _not_yet(draft: Draft, download: Download) -> tuple[Reason, str]:
    progress, pod = download.progress, download.pod
    if download.state is JobState.FAILED:
        why = (progress and progress.error) or "see the logs of its pod"
        again = "" if progress and progress.permanent else " It is tried again."
        return Reason.DOWNLOAD_FAILED, f"The download failed: {why.rstrip('.')}.{again}"
    if download.state is JobState.ABSENT:
        return Reason.DOWNLOAD_PENDING, "The download is about to begin."
    draft.look_again(POLL_SECONDS)
    problem = pod_problem(pod, labels.DOWNLOAD) if pod is not None else None
    if problem is not None:
        return problem.reason, problem.message
    if progress is None:
        wait = "its pod is starting" if pod is not None else "it has no pod yet"
        return Reason.DOWNLOAD_PENDING, f"The download has begun; {wait}."
    return Reason.DOWNLOADING, _words(progress)


def _words(progress: Progress) -> str:
    if not progress.total_bytes:
        return f"{progress.phase.value.capitalize()} the model's files."
    have, all_ = format_bytes(progress.bytes), format_bytes(progress.total_bytes)
    rest = f", about {progress.eta_seconds} s to go" if progress.eta_seconds is not None else ""
    return f"{progress.phase.value.capitalize()}: {have} of {all_}{rest}."


def _cache_status(progress: Progress) -> dict[str, object]:
    found: dict[str, object] = {
        "phase": progress.phase.value,
        "bytes": progress.bytes,
        "totalBytes": progress.total_bytes,
    }
    if progress.eta_seconds is not None:
        found["etaSeconds"] = progress.eta_seconds
    return found
