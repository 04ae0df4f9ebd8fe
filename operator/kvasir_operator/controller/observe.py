"""Gather the inputs of a plan: mostly from the watches, the rest by a few reads."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Generic, TypeVar

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import (
    Object,
    container_run,
    holds,
    is_terminating,
    label,
    name_of,
    namespace_of,
)
from kvasir.resource import LLMDeployment, labels
from kvasir.resource.class_defaults.inheritance import Inheritance
from kvasir.resource.ownership.name_claims import claim_object_name
from kvasir.wire.canary_samples import CanarySamples
from kvasir_operator.ca_bundle import ca_bundle_problem
from kvasir_operator.canary_reports import CanaryReports
from kvasir_operator.controller.crd_check import CRDMissingError, missing_fields
from kvasir_operator.controller.download_progress import Downloads
from kvasir_operator.controller.node_gpus import hardware_for
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import (
    AUTOSCALERS,
    CLAIMS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NODES,
    OPTIONAL,
    PODS,
    SCALED_OBJECTS,
    SECRETS,
)
from kvasir_operator.plan.canary.canary_workload import canary_name, rollout_of
from kvasir_operator.plan.model_download.job_state import job_suffix
from kvasir_operator.plan.observed import Hardware, Observed, ScalingProblem, UpstreamState
from kvasir_operator.router_answers import RouterAnswers
from kvasir_operator.settings import OperatorSettings
from kvasir_operator.spec_facts import device_of, secrets_of, storage_of

_REMEMBER_SECONDS = 60.0
_INFERENCE_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MADE = {"hpa": AUTOSCALERS, "keda": SCALED_OBJECTS}

Value = TypeVar("Value")


class TimedCache(Generic[Value]):
    """A value that is read again when it is `seconds` old."""

    def __init__(self, read: Callable[[], Awaitable[Value]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._value: Value | None = None
        self._until = 0.0

    async def get(self) -> Value:
        """Return the value, read anew if it is too old. Raises what reading raises."""
        if self._value is None or time.monotonic() >= self._until:
            self._value = await self._read()
            self._until = time.monotonic() + self._seconds
        return self._value


class Observer:
    """Maker of `Observed`, the state of an LLMDeployment and its surroundings."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        settings: OperatorSettings,
        routers: RouterAnswers,
        scaling: Callable[[Key], ScalingProblem | None],
    ) -> None:
        self._cluster = cluster
        self._scaling = scaling
        self._routers = routers
        self._view = view
        self._settings = settings
        seconds = min(_REMEMBER_SECONDS, settings.resync_seconds)
        self._optional = TimedCache(self._read_optional, seconds)
        self._nodes = TimedCache(self._read_nodes, seconds)
        self._crd_lacks = TimedCache(self._read_crd_lacks, seconds)
        self._downloads = Downloads()
        where = settings.router_namespace
        self._canaries = CanaryReports(lambda: view.ready_routers(where), settings)

    async def close(self) -> None:
        """Close connections to downloads and routers."""
        await self._downloads.close()
        await self._canaries.close()

    async def observe(
        self,
        key: Key,
        resource: Object,
        deployment: LLMDeployment | str,
        names_lost: Mapping[str, str],
        inherited: Inheritance | None = None,
    ) -> Observed:
        """Return the state of the LLMDeployment at this moment. Raises ApiError."""
        view = self._view
        now = datetime.now(UTC)
        if isinstance(deployment, str):
            return Observed(resource, now)  # the plan says what is wrong with it
        if deployment.spec.external is not None:
            return await self._observe_external(key, resource, deployment, names_lost)
        made = {name_of(it): it for it in view.children(DEPLOYMENTS, key)}
        downloads = view.children(PODS, key, labels.DOWNLOAD)
        jobs = view.children(JOBS, key)
        claim = await self._claim(deployment, key)
        bundle = inherited.defaults.ca_bundle if inherited is not None else None
        return Observed(
            resource,
            now,
            deployment=made.get(key.name),
            canary_deployment=made.get(canary_name(key.name)),
            canary_samples=await self._samples(resource, deployment),
            pods=view.children(PODS, key, labels.ENGINE),
            jobs=jobs,
            job_pods=downloads,
            refused_pods=await self._refused_pods(jobs, downloads),
            claim=claim,
            same_downloads=view.same_downloads(key, job_suffix(deployment.spec, claim)),
            progress=await self._downloads.ask(downloads),
            secrets=await self._secrets(deployment, key),
            names_lost=names_lost,
            inherited=inherited,
            ca_bundle_problem=await ca_bundle_problem(self._cluster, bundle, key.namespace),
            unknown_fallbacks=await self._unknown_fallbacks(deployment),
            hardware=await self._hardware(deployment),
            optional=await self._optional.get(),
            autoscaler=await self._autoscaler(deployment, key),
            scaling=self._scaling(key),
            ready_routers=len(view.ready_routers(self._settings.router_namespace)),
            silent_routers=self._routers.silent(),
            crd_lacks=await self._crd_lacks.get(),
        )

    async def _samples(self, resource: Object, deployment: LLMDeployment) -> CanarySamples | None:
        state = rollout_of(resource.get("status") or {})
        if state is None or state.split is None:
            return None
        return await self._canaries.ask(deployment.served_names[0], state.split.id)

    async def _observe_external(
        self,
        key: Key,
        resource: Object,
        deployment: LLMDeployment,
        names_lost: Mapping[str, str],
    ) -> Observed:
        """Return the state of a model that servers of others serve. Raises ApiError."""
        routers, runs = self._routers, await self._external_runs(key, resource, deployment)
        return Observed(
            resource,
            datetime.now(UTC),
            secrets=await self._secrets(deployment, key),
            names_lost=names_lost,
            unknown_fallbacks=await self._unknown_fallbacks(deployment),
            upstreams=tuple(
                UpstreamState(url, routers.confirmed(run), routers.problem(run))
                for run, url in runs
            ),
            ready_routers=len(self._view.ready_routers(self._settings.router_namespace)),
            silent_routers=routers.silent(),
            crd_lacks=await self._crd_lacks.get(),
        )

    async def _external_runs(
        self, key: Key, resource: Object, deployment: LLMDeployment
    ) -> list[tuple[str, str]]:
        """Return the servers of others as routers name them, each with its name for people. Raises
        ApiError."""
        external, uid = deployment.spec.external, resource["metadata"]["uid"]
        if external is None:
            return []
        runs = [(f"{uid}/url-{i}", it.url) for i, it in enumerate(external.urls)]
        if external.pods is not None:
            labelled = sorted(external.pods.match_labels.items())
            selector = ",".join(f"{name}={value}" for name, value in labelled)
            pods = await self._cluster.list(PODS, key.namespace, selector=selector)
            staying = [it for it in pods if not is_terminating(it)]
            runs += [(container_run(it, _first_container(it)), _pod_name(it)) for it in staying]
        return runs

    async def _unknown_fallbacks(self, deployment: LLMDeployment) -> tuple[str, ...]:
        claim, class_name = self._view.claim, self._settings.class_name
        names = deployment.spec.fallbacks
        unclaimed = [it for it in names if claim(claim_object_name(class_name, it)) is None]
        return tuple([it for it in unclaimed if not await self._kserve_has(it)])

    async def _kserve_has(self, name: str) -> bool:
        """Tell if routers find KServe's pods under that name. Raises ApiError."""
        if not _INFERENCE_SERVICE.fullmatch(name):
            return False
        selector = f"{labels.KSERVE_SERVICE}={name}"
        for namespace in self._settings.kserve_namespaces:
            if await self._cluster.list(PODS, namespace, selector):
                return True
        return False

    async def _claim(self, deployment: LLMDeployment, key: Key) -> Object | None:
        name = storage_of(deployment.spec, key.name).claim
        if name is None:
            return None
        seen = self._view.find(CLAIMS, key, name)
        return seen or await self._cluster.get(CLAIMS, key.namespace, name)

    async def _refused_pods(self, jobs: Iterable[Object], pods: Iterable[Object]) -> dict[str, str]:
        """Return why Jobs have no pod, by their names: only events tell, no Job's status."""
        with_pods = {label(pod, "job-name") for pod in pods}
        found: dict[str, str] = {}
        for job in jobs:
            ended = holds(job, "Complete") or holds(job, "Failed")
            if name_of(job) not in with_pods and not ended:
                message = await self._last_refusal(job)
                if message:
                    found[name_of(job)] = message
        return found

    async def _last_refusal(self, job: Object) -> str:
        fields = f"involvedObject.uid={job['metadata']['uid']},reason=FailedCreate"
        try:
            events = await self._cluster.list(EVENTS, namespace_of(job), fields=fields)
        except ApiError as error:
            if error.status == 403:
                return ""
            raise
        last = max(events, key=lambda it: str(it.get("lastTimestamp") or ""), default={})
        return str(last.get("message") or "")

    async def _autoscaler(self, deployment: LLMDeployment, key: Key) -> Object | None:
        wanted = deployment.spec.autoscaling
        kind = _MADE.get(wanted.controller) if wanted is not None else None
        if kind is None:
            return None
        if kind is AUTOSCALERS and kind.plural not in self._settings.optional_kinds:
            return None
        if kind is SCALED_OBJECTS and kind.plural not in await self._optional.get():
            return None
        return await self._cluster.get(kind, key.namespace, key.name)

    async def _secrets(self, deployment: LLMDeployment, key: Key) -> dict[str, str | None]:
        versions: dict[str, str | None] = {}
        for name in sorted(secrets_of(deployment.spec)):
            versions[name] = await self._secret_version(key.namespace, name)
        return versions

    async def _secret_version(self, namespace: str, name: str) -> str | None:
        """Return uid and resourceVersion; "" where the operator may not read that Secret."""
        try:
            found = await self._cluster.get(SECRETS, namespace, name)
        except ApiError as error:
            if error.status == 403:
                return ""
            raise
        metadata = found["metadata"] if found is not None else None
        return metadata and f"{metadata['uid']}/{metadata['resourceVersion']}"

    async def _hardware(self, deployment: LLMDeployment) -> Hardware:
        resources = deployment.spec.resources
        if device_of(deployment.spec) != "cuda" and not resources.gpus:
            return Hardware()
        # What a claim may have stands in ResourceSlices, which are the drivers' own
        reads = self._settings.node_reads and resources.gpu_claim is None
        nodes = await self._nodes.get() if reads else None
        selector, profiles = deployment.spec.pod_template.node_selector, self._settings
        kind = resources.limits.gpu_resource
        return hardware_for(selector, nodes, profiles.resource_profiles, kind)

    async def _read_optional(self) -> frozenset[str]:
        serves, allowed = self._cluster.serves, self._settings.optional_kinds
        wanted = [it for it in OPTIONAL if it.plural in allowed]
        return frozenset([it.plural for it in wanted if await serves(it.api_version, it.plural)])

    async def _read_crd_lacks(self) -> tuple[str, ...]:
        try:
            return await missing_fields(self._cluster)
        except CRDMissingError:
            return ()  # whatever is looked at goes with it

    async def _read_nodes(self) -> list[Object]:
        try:
            return await self._cluster.list(NODES)
        except ApiError as error:
            if error.status == 403:
                return []
            raise


def _first_container(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["name"])


def _pod_name(pod: Object) -> str:
    return f"pod {name_of(pod)}"
