"""Step 2: see that the model is where engines read it; if not, a Job downloads it."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.kube.objects import Object, annotation, condition, label, name_of
from kvasir.kube.pod_problems import pod_problem
from kvasir.models.download.progress import Progress
from kvasir.quantity import format_bytes
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.model_download.job_manifest import account_manifest, job_manifest
from kvasir_operator.plan.model_download.job_state import (
    POD_ANNOTATION,
    Download,
    JobState,
    download_of,
    is_adapter_job,
    job_name,
    retry_delay,
)
from kvasir_operator.plan.model_download.storage import claim_manifest, has_own_claim
from kvasir_operator.plan.step import PlanInputs, StepResult

POLL_SECONDS = 5.0
"""Interval between two looks at a running download."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel(StepResult):
    """Contribution of the model's cache; engines are blocked until ModelCached is True."""

    download: Download | None = None
    """State of the download, where one is needed and its volume exists."""


def cache_model(inputs: PlanInputs, accepted: StepResult) -> CachedModel:
    """Set ModelCached and status.cache."""
    storage = inputs.storage
    makes_claim = storage.cached and not has_own_claim(inputs.spec)
    made: tuple[Object, ...] = (claim_manifest(inputs),) if makes_claim else ()
    account = account_manifest(inputs) if storage.cached else None
    made += (account,) if account is not None else ()
    if storage.cached and inputs.observed.claim is not None:
        return _download(inputs, accepted, made)
    there, reason, message = _verdict_on_storage(inputs, makes_claim)
    return CachedModel(
        manifests=made,
        deletions=() if storage.cached else _of_models(inputs),  # of a former model
        conditions=(ConditionValue(ConditionType.MODEL_CACHED, there, reason, message),),
        blocked=not there,
        requeue=30.0 if reason is Reason.CLAIM_MISSING else None,  # users' claims are not watched
    )


def _verdict_on_storage(inputs: PlanInputs, claim_is_made: bool) -> tuple[bool, Reason, str]:
    claim = inputs.storage.claim
    if claim is None:
        return True, Reason.NOT_NEEDED, "It is in the image."
    if inputs.observed.claim is not None:
        return True, Reason.NOT_NEEDED, f"It lies on claim {claim}."
    if claim_is_made:
        return False, Reason.DOWNLOAD_PENDING, "The volume claim is being made."
    message = f"Claim {claim!r} does not exist in namespace {inputs.namespace}; create it."
    return False, Reason.CLAIM_MISSING, message


def _download(inputs: PlanInputs, accepted: StepResult, others: tuple[Object, ...]) -> CachedModel:
    name = job_name(inputs)
    download, wanted = download_of(inputs.observed, name), job_manifest(inputs, name)
    same = _same_download(inputs) if download.state is JobState.ABSENT else None
    deletions = [job for job in _of_models(inputs) if name_of(job) != name]
    manifests, requeue = others, POLL_SECONDS if same else None
    if download.job is not None:
        goes, requeue = life_of(inputs, download, download.job, wanted)
        if goes:
            deletions.append(download.job)
            download = Download(JobState.ABSENT)
    elif same is None and not accepted.blocked:
        manifests = (*others, wanted)
    done, reason, message = verdict_on_download(download, inputs.observed.refused_pods.get(name))
    if same is not None:
        message = f"LLMDeployment {same} is downloading the same model onto the same claim."
    return CachedModel(
        manifests=manifests,
        deletions=tuple(deletions),
        conditions=(ConditionValue(ConditionType.MODEL_CACHED, done, reason, message),),
        status={"cache": _cache_status(download.progress)} if download.progress else {},
        blocked=not done,
        requeue=requeue,
        download=download,
    )


def _of_models(inputs: PlanInputs) -> tuple[Object, ...]:
    """Return the Jobs that download, or downloaded, a model."""
    return tuple(job for job in inputs.observed.jobs if not is_adapter_job(inputs, job))


def life_of(
    inputs: PlanInputs, download: Download, job: Object, wanted: Object
) -> tuple[bool, float | None]:
    """Tell if a Job shall make room for another one, and when to look again."""
    if _is_outdated(download, job, wanted):
        return True, 1.0
    if download.state is JobState.FAILED:
        delay = retry_delay(inputs, job, download.progress)
        return (True, 1.0) if delay == 0 else (False, delay)
    return False, POLL_SECONDS if download.state is JobState.RUNNING else None


def _same_download(inputs: PlanInputs) -> str | None:
    """Return the name of another LLMDeployment whose pod downloads the same at this moment: a Job
    of our own would only wait for it. When it has ended, ours finds the model, or goes on."""
    for job in inputs.observed.same_downloads:
        if int((job.get("status") or {}).get("ready") or 0):
            return label(job, labels.DEPLOYMENT)
    return None


def _is_outdated(download: Download, job: Object, wanted: Object) -> bool:
    """Tell if a Job that has failed, or whose pod does not run, asks for another pod than now."""
    idle = download.state is JobState.RUNNING and download.progress is None
    if not (idle or download.state is JobState.FAILED):
        return False
    before = annotation(job, POD_ANNOTATION)
    return before != "" and before != annotation(wanted, POD_ANNOTATION)


def verdict_on_download(download: Download, refused: str | None) -> tuple[bool, Reason, str]:
    """Tell if a download has ended well, with the reason and a sentence on where it is. `refused`:
    why its Job gets no pod, if it does not."""
    progress, pod = download.progress, download.pod
    if download.state is JobState.DONE:
        message = f"{format_bytes(progress.total_bytes)} are there." if progress else ""
        return True, Reason.CACHED, message
    if download.state is JobState.FAILED:
        why = (progress and progress.error) or _why_failed(download)
        again = "" if progress and progress.permanent else " It is tried again."
        return False, Reason.DOWNLOAD_FAILED, f"The download failed: {why.rstrip('.')}.{again}"
    if download.state is JobState.ABSENT:
        return False, Reason.DOWNLOAD_PENDING, "The download is about to begin."
    if pod is None and refused is not None:
        return False, *_refusal(refused)
    problem = pod_problem(pod, (labels.DOWNLOAD,)) if pod is not None else None
    if problem is not None:
        return False, problem.reason, problem.message
    if progress is None:
        wait = "its pod is starting" if pod is not None else "it has no pod yet"
        return False, Reason.DOWNLOAD_PENDING, f"The download has begun; {wait}."
    return False, Reason.DOWNLOADING, _words(progress)


def _refusal(message: str) -> tuple[Reason, str]:
    """Return what keeps the Job's controller from making its pod, in the API server's words."""
    by_quota = "quota" in message
    reason = Reason.QUOTA_EXCEEDED if by_quota else Reason.PODS_REFUSED
    remedy = " Raise the quota, or set spec.cache.download.resources." if by_quota else ""
    return reason, f"The download's pod cannot be made: {message.rstrip('.')}.{remedy}"


def _why_failed(download: Download) -> str:
    """Return the Job's own reason, for a download that has left no report."""
    failed = condition(download.job, "Failed") if download.job is not None else {}
    if failed.get("reason") == "DeadlineExceeded":
        return "it did not end within spec.cache.download.deadlineSeconds"
    told = f"{failed['message']}; " if failed.get("message") else ""
    return f"{told}see the logs of its pod"


def _words(progress: Progress) -> str:
    if not progress.total_bytes:
        return f"{progress.phase.value.capitalize()} the model's files."
    have, all_ = format_bytes(progress.bytes), format_bytes(progress.total_bytes)
    rest = f", about {progress.eta_seconds} s to go" if progress.eta_seconds is not None else ""
    return f"{progress.phase.value.capitalize()}: {have} of {all_}{rest}."


def _cache_status(progress: Progress) -> dict[str, object]:
    eta = {"etaSeconds": progress.eta_seconds} if progress.eta_seconds is not None else {}
    sizes = {"bytes": progress.bytes, "totalBytes": progress.total_bytes}
    return {"phase": progress.phase.value, **sizes, **eta}
