"""Downloads of LoRA adapters onto the model's volume: a Job for each directory that is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvasir.kube.objects import Object, name_of
from kvasir.model_uri import ModelURI
from kvasir.resource.deployment_status import Reason
from kvasir_operator.plan.model_download.cache_step import life_of, verdict_on_download
from kvasir_operator.plan.model_download.job_manifest import adapter_job
from kvasir_operator.plan.model_download.job_state import (
    Download,
    JobState,
    adapter_job_name,
    download_of,
    is_adapter_job,
)
from kvasir_operator.plan.step import PlanInputs

_AT_ONCE = 4
"""Downloads that run at the same time."""


@dataclass(frozen=True, slots=True)
class LoraDownloads:
    """State of the adapters' downloads, and what shall be done about them."""

    manifests: tuple[Object, ...] = ()
    deletions: tuple[Object, ...] = ()
    requeue: float | None = None
    unfinished: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)
    """Reasons and sentences of those that are not there yet, by URI."""


def plan_downloads(inputs: PlanInputs, waits: bool) -> LoraDownloads:
    """Want a Job for each adapter that is downloaded, a few at a time; none is made while the
    model's own download or anything else `waits`."""
    uris = {str(it.parsed_uri): it.parsed_uri for it in inputs.spec.adapters or () if it.downloaded}
    names = {uri: adapter_job_name(inputs, parsed) for uri, parsed in uris.items()}
    jobs = [job for job in inputs.observed.jobs if is_adapter_job(inputs, job)]
    deletions = [job for job in jobs if name_of(job) not in names.values()]
    looks = {uri: _settled(inputs, name, uris[uri], deletions) for uri, name in names.items()}
    requeues = [again for _, again in looks.values() if again is not None]
    unfinished: dict[str, tuple[Reason, str]] = {}
    for uri, (download, _) in looks.items():
        no_pod = inputs.observed.refused_pods.get(names[uri])
        done, reason, message = verdict_on_download(download, no_pod)
        if not done:
            unfinished[uri] = reason, message
    # All that run are counted before one begins: new ones may stand before them
    running = sum(download.state is JobState.RUNNING for download, _ in looks.values())
    absent = [uri for uri, (download, _) in looks.items() if download.state is JobState.ABSENT]
    beginning = [] if waits else absent[: max(0, _AT_ONCE - running)]
    return LoraDownloads(
        tuple(adapter_job(inputs, names[uri], uris[uri]) for uri in beginning),
        tuple(deletions),
        min(requeues, default=None),
        unfinished,
    )


def _settled(
    inputs: PlanInputs, name: str, uri: ModelURI, deletions: list[Object]
) -> tuple[Download, float | None]:
    """Return the state of a download, and when to look again; a Job that makes room for another
    one goes to `deletions`."""
    download = download_of(inputs.observed, name)
    if download.job is None:
        return download, None
    goes, again = life_of(inputs, download, download.job, adapter_job(inputs, name, uri))
    if not goes:
        return download, again
    deletions.append(download.job)
    # Made anew at the next look: until then the old one's name is taken
    return Download(JobState.RUNNING), again
