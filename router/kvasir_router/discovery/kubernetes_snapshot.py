"""Models that the router serves, from what is in a cluster: pure.

Models are LLMDeployments under their names, and InferenceServices of KServe under theirs. A name is
one model's in all the namespaces that are watched: an LLMDeployment's before an InferenceService's,
of the former the oldest one's, of the latter that of the first namespace by name.
"""

from collections import defaultdict
from collections.abc import Container, Iterable

from kvasir.resource.name_claims import Claim, owners
from kvasir_router.discovery.kubernetes_objects import LLMDeployment
from kvasir_router.discovery.kubernetes_pods import Placed
from kvasir_router.discovery.specs import ModelSpec, PolicySpec, ReplicaSpec, Snapshot

_Owner = tuple[str, str]


def snapshot(
    deployments: Iterable[LLMDeployment],
    engines: Iterable[Placed],
    kserve: Iterable[Placed],
    policies: Container[str],
) -> Snapshot:
    """Every model, also one without a replica: requests for it wait. Of a policy that is none of
    `policies` a newer version knows: the router's own takes its place."""
    deployments = list(deployments)
    owner = owners(_claim(each) for each in deployments)
    replicas, kserve = _by_owner(engines), list(kserve)
    tokenizers = _tokenizers(kserve)
    models = []
    for deployment in sorted(deployments, key=_age):
        names = [name for name in deployment.names if owner[name] == deployment.metadata.uid]
        if names:
            own = replicas[deployment.metadata.namespace, deployment.metadata.name]
            models.append(_model(deployment, names, own, policies))
    for (namespace, name), own in sorted(_by_owner(kserve).items()):
        if name not in owner:
            owner[name] = name
            tokenizer = tokenizers.get((namespace, name))
            models.append(ModelSpec(name, replicas=tuple(own), tokenizer=tokenizer))
    return tuple(models)


def _claim(deployment: LLMDeployment) -> Claim:
    return Claim(*_age(deployment), tuple(deployment.names))


def _age(deployment: LLMDeployment) -> tuple[str, str]:
    return deployment.metadata.creation_timestamp, deployment.metadata.uid


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
    )
