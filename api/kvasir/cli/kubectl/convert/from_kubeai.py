"""KubeAI's Model (kubeai.org/v1)."""

from __future__ import annotations

import re
from typing import Any

from kvasir.cli.kubectl.convert.draft import ConvertError, Draft, EngineChoice, Source
from kvasir.cli.kubectl.convert.pod_fields import set_scale, set_uri, take_env, whole
from kvasir.cli.kubectl.convert.vllm_flags import parse_flags, take_flags

_POLICIES = {"LeastLoad": "least_load", "PrefixHash": "prefix_hash"}


def convert_kubeai(document: dict[str, Any], engine: EngineChoice) -> Draft:
    """Return the draft of a Model. Raises ConvertError."""
    source = Source(document)
    draft = Draft(
        source.take("metadata", "name", default="model"),
        engine,
        source.take("metadata", "namespace"),
    )
    for known in ("apiVersion", "kind", "status"):
        source.take(known)
    spec = source.part("spec")
    kind = spec.take("engine", default="VLLM")
    url = str(spec.take("url", default=""))
    if kind != "VLLM":
        raise ConvertError(f"{draft.name}: engine {kind} has no counterpart; only VLLM has one")
    set_uri(draft, url, "spec.url")
    draft.set("spec.engine.image", spec.take("image"))
    _, flags = parse_flags([str(word) for word in spec.take("args", default=[])])
    take_flags(draft, flags)
    variables = spec.take("env", default={})
    env = [{"name": name, "value": str(value)} for name, value in variables.items()]
    take_env(draft, env, "spec.env")
    draft.set("spec.engine.envFrom", spec.take("envFrom"))
    _take_profile(draft, spec.take("resourceProfile"))
    _take_scale(draft, spec)
    for feature in spec.take("features", default=[]):
        if feature != "TextGeneration":
            draft.lose(f"spec.features {feature}", "only TextGeneration is served")
    strategy = spec.take("loadBalancing", "strategy")
    draft.set("spec.router.policy", _POLICIES.get(str(strategy)))
    draft.set("spec.podTemplate.priorityClassName", spec.take("priorityClassName"))
    if profile := spec.take("cacheProfile"):
        draft.lose("spec.cacheProfile", f"what {profile} sets is not known; see spec.cache.pvc")
    draft.lose_rest(spec, source)
    return draft


def _take_profile(draft: Draft, profile: Any) -> None:
    """Take the number of GPUs; where their nodes are is in KubeAI's own configuration."""
    if not profile:
        return
    name, _, count = str(profile).partition(":")
    if re.search(r"gpu|nvidia", name):
        draft.gpus = whole(count or 1)
        draft.lose(
            f"spec.resourceProfile {name}",
            "its node selector, tolerations and requests are not known; see spec.podTemplate and"
            " spec.resources",
        )
    else:
        draft.lose(f"spec.resourceProfile {profile}", "see spec.resources and spec.podTemplate")


def _take_scale(draft: Draft, spec: Source) -> None:
    low, high = spec.take("minReplicas", default=0), spec.take("maxReplicas")
    target, delay = spec.take("targetRequests"), spec.take("scaleDownDelaySeconds")
    replicas = spec.take("replicas")
    if spec.take("autoscalingDisabled") or high is None:
        set_scale(draft, replicas if replicas is not None else low or 1, None)
        if high is None and target is not None:
            draft.lose("spec.targetRequests", "without maxReplicas nothing is scaled")
        return
    set_scale(draft, low, high, target)
    if delay is not None and draft.get("spec.autoscaling"):
        draft.set("spec.autoscaling.behavior.scaleDown.stabilizationSeconds", whole(delay))
