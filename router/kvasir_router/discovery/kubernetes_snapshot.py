"""Models that the router serves, from what is in a cluster: pure.

Models are LLMDeployments under those of their names that they have claimed, or had before there
were claims, and InferenceServices of KServe under theirs, in the namespaces that the release lists.
An LLMDeployment's name comes before an InferenceService's; of these, that of the namespace which is
listed first.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvasir.resource.ownership.name_claims import Holder, NameClaim, holders
from kvasir_router.discovery.kubernetes_objects import LLMDeployment
from kvasir_router.discovery.kubernetes_pods import Guest, Placed, tokenizer_on_hub
from kvasir_router.discovery.kubernetes_upstreams import (
    FoundKey,
    KeyName,
    Selection,
    guest_replicas,
    upstream_replicas,
)
from kvasir_router.discovery.specs import (
    MatchSpec,
    ModelSpec,
    PolicySpec,
    ReplicaSpec,
    Snapshot,
    SplitSpec,
)
from kvasir_router.options.cluster_scope import ClusterScope

_Owner = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """Everything that a snapshot is made from."""

    claims: Iterable[NameClaim] = ()
    deployments: Iterable[LLMDeployment] = ()
    engines: Iterable[Placed] = ()
    kserve: Iterable[Placed] = ()
    unclaimed: Mapping[str, Holder] = field(default_factory=dict)
    """Names that nobody has claimed and that are served all the same (`unclaimed_names`)."""
    keys: Mapping[KeyName, FoundKey] = field(default_factory=dict)
    """Keys of upstreams, as far as they have been read."""
    guests: Mapping[Selection, Sequence[Guest]] = field(default_factory=dict)
    """Pods of others that LLMDeployments select."""


def snapshot(found: ClusterObjects, scope: ClusterScope, policies: Container[str]) -> Snapshot:
    """Every model, also one without a replica: requests for it wait. Of a policy that is none of
    `policies` a newer version knows: the router's own takes its place."""
    holder = {**found.unclaimed, **holders(found.claims, scope.class_name)}
    replicas = _by_owner(found.engines)
    models = []
    for deployment in sorted(found.deployments, key=lambda it: it.age):
        own = Holder(deployment.metadata.namespace, deployment.metadata.name)
        names = [name for name in deployment.names if holder.get(name) == own]
        if names:
            others = (
                *upstream_replicas(deployment, found.keys),
                *guest_replicas(deployment, found.guests),
            )
            made = _model(deployment, names, [*others, *replicas[own]], policies)
            adapters = tuple(it for it in deployment.adapters if holder.get(it) == own)
            models.append(_with_adapters(made, adapters) if adapters else made)
    return (*models, *_kserve_models(list(found.kserve), scope, set(holder)))


def _kserve_models(pods: list[Placed], scope: ClusterScope, taken: set[str]) -> Iterable[ModelSpec]:
    order = {namespace: place for place, namespace in enumerate(scope.kserve_namespaces)}
    tokenizers = _tokenizers(pods)
    services = {key: own for key, own in _by_owner(pods).items() if key[0] in order}
    for (namespace, name), own in sorted(
        services.items(), key=lambda it: (order[it[0][0]], it[0][1])
    ):
        if name not in taken:
            taken.add(name)
            tokenizer = tokenizers.get((namespace, name))
            yield ModelSpec(name, replicas=tuple(own), tokenizer=tokenizer)


def _by_owner(pods: Iterable[Placed]) -> defaultdict[_Owner, list[ReplicaSpec]]:
    """Each one's replicas, the oldest first; also of those that have none."""
    owners: defaultdict[_Owner, list[ReplicaSpec]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: (pod.created, pod.uid)):
        own = owners[pod.namespace, pod.owner]
        if pod.replica is not None:
            own.append(pod.replica)
    return owners


def _tokenizers(pods: Iterable[Placed]) -> dict[_Owner, str]:
    """Each one's, as its newest pod has it, if that publishes what it is good for."""
    return {
        (pod.namespace, pod.owner): pod.tokenizer
        for pod in sorted(pods, key=lambda pod: (pod.created, pod.uid))
        if pod.tokenizer is not None and pod.replica is not None and pod.replica.kv_events
    }


def _model(
    deployment: LLMDeployment,
    names: list[str],
    replicas: list[ReplicaSpec],
    policies: Container[str],
) -> ModelSpec:
    router = deployment.spec.router
    return ModelSpec(
        name=names[0],
        aliases=tuple(names[1:]),
        replicas=tuple(replicas),
        policy=PolicySpec(router.policy) if router.policy and router.policy in policies else None,
        hold=router.hold_seconds,
        tokenizer=tokenizer_on_hub(router.tokenizer),
        fallbacks=deployment.spec.fallbacks,
        fallback_after=router.fallback_seconds,
        split=split_of(deployment),
    )


def _with_adapters(model: ModelSpec, adapters: tuple[str, ...]) -> ModelSpec:
    """Return the model with LoRA adapters; a replica of which nothing is said holds none."""
    replicas = tuple(replace(it, adapters=it.adapters or ()) for it in model.replicas)
    return replace(model, adapters=adapters, replicas=replicas)


def split_of(deployment: LLMDeployment) -> SplitSpec | None:
    """Return the split that an operator has told of; None if none gets a canary."""
    rollout = deployment.status.rollout
    if rollout is None or rollout.split is None:
        return None
    found = rollout.split
    return SplitSpec(
        found.id,
        found.revision,
        None if found.weight is None else min(max(found.weight, 0), 100) / 100,
        tuple(
            MatchSpec(key_id=each.key_id)
            if each.header is None
            else MatchSpec(each.header.name.lower(), each.header.value)
            for each in found.matches
        ),
        found.min_samples,
    )
