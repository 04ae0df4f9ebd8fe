"""State of a cluster as an edit is planned against it: what the operator would observe, as far as a
user may read it."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp

from kvasir.cli.kubectl.cluster_session import ClusterError, ClusterSession, explain, selector_of
from kvasir.kube import ApiError
from kvasir.kube.client import read_body
from kvasir.kube.objects import Object, label, name_of, namespace_of
from kvasir.resource import LLMDeployment, labels
from kvasir.resource.ownership.name_claims import claim_object_name, names_of, read_claim
from kvasir_operator.controller.node_gpus import hardware_for
from kvasir_operator.kinds import (
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    LLMDEPLOYMENTS,
    MODEL_NAMES,
    NODES,
    PODS,
)
from kvasir_operator.plan.canary.canary_workload import canary_name
from kvasir_operator.plan.observed import Hardware, Observed, parse_resource
from kvasir_operator.settings import Images, OperatorSettings
from kvasir_operator.spec_facts import secrets_of, storage_of

_IMAGE = re.compile(r"--image-(cpu|cuda|sim|download)=(.*)")
_UNKNOWN = "the-operators-own"
_DRY_RUN = aiohttp.ClientTimeout(sock_connect=10.0, sock_read=30.0)


async def read_state(
    session: ClusterSession, document: Mapping[str, Any]
) -> tuple[Observed | None, Observed, OperatorSettings]:
    """Return what is observed with the LLMDeployment as it is, None where there is none, and as
    `document` would have it, and the operator's settings. Raises ClusterError."""
    name = str(document["metadata"]["name"])
    namespace = str(document["metadata"].get("namespace") or session.namespace or "default")
    live = await session.get(LLMDEPLOYMENTS, namespace, name)
    edited = await _edited(session, live, document, namespace)
    around = await _around(session, edited, live)
    settings = await _settings(session, edited)
    after = replace(around, resource=edited, **await _of_spec(session, edited, settings))
    if live is None:
        return None, after, settings
    before = replace(around, resource=live, **await _of_spec(session, live, settings))
    return before, after, settings


async def _edited(
    session: ClusterSession, live: Object | None, document: Mapping[str, Any], namespace: str
) -> Object:
    """Return the LLMDeployment after `kubectl apply`, with what the API server says of it; by its
    rules alone where the user may not write."""
    name = document["metadata"]["name"]
    if live is None:
        metadata = {**document["metadata"], "namespace": namespace}
        body = {**document, "metadata": metadata}
        made = await _dry_run(session, "POST", LLMDEPLOYMENTS.path(namespace), body)
        made = copy.deepcopy(made or body)
        made["metadata"].setdefault("uid", "")
        return made
    body = copy.deepcopy(live)
    body["spec"] = dict(document["spec"])
    # Left out, it stays what an autoscaler or somebody else has made of it
    body["spec"].setdefault("replicas", live["spec"].get("replicas", 1))
    path = LLMDEPLOYMENTS.path(namespace, name)
    made = await _dry_run(session, "PUT", path, body) or body
    return {**made, "status": live.get("status") or {}}


async def _dry_run(
    session: ClusterSession, method: str, path: str, body: Mapping[str, Any]
) -> Object | None:
    """Return what the API server would store; None where the user may not write. Raises
    ClusterError for what it refuses."""
    import json

    query = {"dryRun": "All", "fieldManager": "kubectl-kvasir", "fieldValidation": "Strict"}
    headers = {"Content-Type": "application/json"}
    try:
        async with session.cluster.open(
            method, path, query, body, headers, timeout=_DRY_RUN
        ) as answer:
            found: Object = json.loads(await read_body(answer, 8 << 20))
            return found
    except ApiError as error:
        if error.status == 403:
            return None
        if error.status in (400, 422):
            raise ClusterError(f"the API server refuses the file: {error}") from None
        verb = "update" if method == "PUT" else "create"
        raise explain(error, session.cluster.access, verb, LLMDEPLOYMENTS, None) from error


async def _around(session: ClusterSession, edited: Object, live: Object | None) -> Observed:
    """Return what is observed around an LLMDeployment, whatever its spec is."""
    namespace, name = namespace_of(edited), name_of(edited)
    selector = selector_of(name)
    deployments, pods, jobs = await asyncio.gather(
        *(session.find(kind, namespace, selector) for kind in (DEPLOYMENTS, PODS, JOBS))
    )
    made = {name_of(it): it for it in deployments}
    return Observed(
        resource=live or edited,
        now=datetime.now(UTC),
        deployment=made.get(name),
        canary_deployment=made.get(canary_name(name)),
        pods=tuple(it for it in pods if label(it, labels.COMPONENT) == labels.ENGINE),
        jobs=tuple(jobs),
        job_pods=tuple(it for it in pods if label(it, labels.COMPONENT) == labels.DOWNLOAD),
        ready_routers=1,
    )


async def _of_spec(
    session: ClusterSession, resource: Object, settings: OperatorSettings
) -> dict[str, Any]:
    """Return what is observed because a spec names it."""
    parsed = parse_resource(resource)
    if isinstance(parsed, str):
        return {}
    namespace = namespace_of(resource)
    found: dict[str, Any] = {
        # That they exist is all that a plan asks for; nobody's Secret is read for it
        "secrets": dict.fromkeys(secrets_of(parsed.spec), ""),
        "names_lost": await _names_lost(session, resource, settings.class_name),
        "hardware": await _hardware(session, parsed),
    }
    if parsed.spec.external is None:
        claim = storage_of(parsed.spec, parsed.name).claim
        found["claim"] = await session.get(CLAIMS, namespace, claim) if claim else None
    return found


async def _names_lost(session: ClusterSession, resource: Object, class_name: str) -> dict[str, str]:
    """Return the names that another LLMDeployment has claimed, where that may be read."""
    lost = {}
    for name in names_of(resource):
        try:
            claim = await session.get(MODEL_NAMES, "", claim_object_name(class_name, name))
        except ClusterError:
            return {}
        read = read_claim(claim) if claim is not None else None
        if read is not None:
            holder = f"{read.holder.namespace}/{read.holder.name}"
            if holder != f"{namespace_of(resource)}/{name_of(resource)}":
                lost[name] = holder
    return lost


async def _hardware(session: ClusterSession, deployment: LLMDeployment) -> Hardware:
    try:
        nodes: Sequence[Object] | None = await ClusterSession(session.cluster, None).find(NODES)
    except ClusterError:
        nodes = None
    return hardware_for(deployment.spec.pod_template.node_selector, nodes, {})


async def _settings(session: ClusterSession, resource: Object) -> OperatorSettings:
    """Return the settings of the operator that decide on templates, as far as they may be read:
    those that differ are the same before and after the edit."""
    class_name = (resource.get("status") or {}).get("className") or labels.DEFAULT_CLASS
    images = dict.fromkeys(("cpu", "cuda", "sim", "download"), _UNKNOWN)
    selector = f"{labels.COMPONENT}={labels.OPERATOR}"
    namespace = "kvasir"
    try:
        found = await ClusterSession(session.cluster, None).find(DEPLOYMENTS, selector=selector)
    except ClusterError:
        found = []
    for operator in found:
        words = operator["spec"]["template"]["spec"]["containers"][0].get("args") or []
        if f"--class-name={class_name}" in words:
            namespace = namespace_of(operator)
            images |= {it[1]: it[2] for word in words if (it := _IMAGE.fullmatch(word))}
    return OperatorSettings(namespace=namespace, class_name=class_name, images=Images(**images))
