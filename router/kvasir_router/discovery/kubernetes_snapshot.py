"""From what is in a cluster to the models that the router serves: pure.

Models are LLMDeployments under their names, and InferenceServices of KServe under theirs. A name is
one model's in all the namespaces that are watched: an LLMDeployment's before an InferenceService's,
of the former the oldest one's, of the latter that of the first namespace by name.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

from kvasir.llmdeployment import labels
from kvasir.llmdeployment.claims import Claim, owners
from kvasir_router.discovery.base import EngineKind, ModelSpec, ReplicaSpec, Snapshot
from kvasir_router.discovery.kubernetes_objects import ContainerStatus, LLMDeployment, Object, Pod
from kvasir_router.policy.registry import POLICIES

ENGINE_LABEL = "kvasir.dev/engine"
"""On KServe's pods: an EngineKind's value. Without it they offer OpenAI's protocol and no more."""

_KSERVE_CONTAINER = "kserve-container"
_KSERVE_PORT = 8080  # of a container that names none, as KServe has it

# Not KVASIR: whoever may make a pod can label it, and would be told the fleet's secret.
_GUESTS = {kind.value: kind for kind in EngineKind if kind is not EngineKind.KVASIR}

_ENDED = ("Succeeded", "Failed")

_Owner = tuple[str, str]


def snapshot(
    deployments: Iterable[LLMDeployment], engine_pods: Iterable[Pod], kserve_pods: Iterable[Pod]
) -> Snapshot:
    """Every model, also one without a replica: requests for it wait."""
    deployments = list(deployments)
    owner = owners(_claim(each) for each in deployments)
    pods = _by_owner(engine_pods, labels.DEPLOYMENT)
    models = []
    for deployment in sorted(deployments, key=_age):
        names = [name for name in deployment.names if owner[name] == deployment.metadata.uid]
        if names:
            own = pods[deployment.metadata.namespace, deployment.metadata.name]
            models.append(_model(deployment, names, own))
    services = _by_owner(kserve_pods, labels.KSERVE_SERVICE)
    for (_, name), own in sorted(services.items(), key=lambda item: item[0]):
        if name not in owner:
            owner[name] = name
            models.append(ModelSpec(name, replicas=_replicas(own, _kserve_replica)))
    return tuple(models)


def _claim(deployment: LLMDeployment) -> Claim:
    return Claim(*_age(deployment), tuple(deployment.names))


def _age(it: Object) -> tuple[str, str]:
    return it.metadata.creation_timestamp, it.metadata.uid


def _by_owner(pods: Iterable[Pod], label: str) -> defaultdict[_Owner, list[Pod]]:
    owners: defaultdict[_Owner, list[Pod]] = defaultdict(list)
    for pod in pods:
        owners[pod.metadata.namespace, pod.metadata.labels.get(label, "")].append(pod)
    return owners


def _model(deployment: LLMDeployment, names: list[str], pods: Iterable[Pod]) -> ModelSpec:
    router = deployment.spec.router
    return ModelSpec(
        name=names[0],
        aliases=tuple(names[1:]),
        replicas=_replicas(pods, _engine_replica),
        policy=router.policy if router.policy in POLICIES else None,
        hold=router.hold_seconds,
    )


def _replicas(
    pods: Iterable[Pod], replica: Callable[[Pod], ReplicaSpec | None]
) -> tuple[ReplicaSpec, ...]:
    return tuple(filter(None, map(replica, sorted(pods, key=_age))))


def _engine_replica(pod: Pod) -> ReplicaSpec | None:
    """An engine that the operator made, with all that such a one offers."""
    status = _serving(pod, labels.ENGINE_CONTAINER)
    if status is None:
        return None
    ports, host = _ports(pod, labels.ENGINE_CONTAINER), pod.status.pod_ip
    events, replay = ports.get("events"), ports.get("replay")
    return ReplicaSpec(
        _id(pod, status),
        host,
        ports.get("http", labels.HTTP_PORT),
        draining=_leaves(pod),
        grpc_port=ports.get("grpc"),
        kv_events=_zmq_address(host, events) if events else None,
        kv_replay=_zmq_address(host, replay) if events and replay else None,
    )


def _kserve_replica(pod: Pod) -> ReplicaSpec | None:
    """An engine of a pod that KServe made: its first port is the one that serves."""
    status = _serving(pod, _KSERVE_CONTAINER)
    if status is None:
        return None
    port = next(iter(_ports(pod, _KSERVE_CONTAINER).values()), _KSERVE_PORT)
    return ReplicaSpec(
        _id(pod, status),
        pod.status.pod_ip,
        port,
        draining=_leaves(pod),
        engine=_GUESTS.get(pod.metadata.labels.get(ENGINE_LABEL, ""), EngineKind.OPENAI),
    )


def _serving(pod: Pod, container: str) -> ContainerStatus | None:
    """The container's status if it may serve: from the end of its startup probe to its end.

    Whether it is ready in between is known better, and sooner, from the router's own probes. The
    pod's Ready is not asked: it waits for this router.
    """
    if not pod.status.pod_ip or pod.status.phase in _ENDED:
        return None
    for status in pod.status.container_statuses:
        if status.name == container:
            started = status.state.running is not None and status.started
            return status if started or pod.has_condition("ContainersReady") else None
    return None


def _leaves(pod: Pod) -> bool:
    """Whether it is being deleted, or will be."""
    leaves = pod.metadata.deletion_timestamp is not None
    return leaves or pod.has_condition("DisruptionTarget")


def _id(pod: Pod, status: ContainerStatus) -> str:
    """One run of the pod's engine: another run has another cache."""
    return f"{pod.metadata.uid}/{status.restart_count}"


def _ports(pod: Pod, container: str) -> dict[str, int]:
    """By name, in their order."""
    containers = (each for each in pod.spec.containers if each.name == container)
    return {port.name: port.container_port for each in containers for port in each.ports}


def _zmq_address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
