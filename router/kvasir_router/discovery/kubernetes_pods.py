"""Replica of a pod, if it is one: read once for each change of the pod."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kvasir.model_uri import ModelURIError, parse_model_uri
from kvasir.resource import labels
from kvasir.resource.engines.traits import CustomAPI
from kvasir.resource.lora.lora_held import read_held
from kvasir_router.discovery.engine_apis import is_safe
from kvasir_router.discovery.kubernetes_objects import ContainerStatus, Pod
from kvasir_router.discovery.specs import Departure, EngineKind, ReplicaSpec

MAX_TOKENIZER = 200
"""Characters of the annotation that names one."""

_KSERVE_CONTAINER = "kserve-container"
_KSERVE_PORT = 8080  # of a container that names none, as KServe has it

# Not KVASIR: whoever may make a pod can label it, and would be told the fleet's secret.
_GUESTS = {kind.value: kind for kind in EngineKind if kind is not EngineKind.KVASIR}

_ENDED = ("Succeeded", "Failed")


class Placed(NamedTuple):
    """A pod as far as routing is concerned: two that are equal differ in nothing that matters."""

    uid: str
    created: str
    namespace: str
    owner: str
    """Name of the LLMDeployment or InferenceService that it belongs to."""
    replica: ReplicaSpec | None
    """None while it does not serve."""
    tokenizer: str | None = None
    """Hub id of what tokenises its prompts, for engines that publish KV events and report none."""


_decode = msgspec.json.Decoder(Pod).decode
_decode_custom = msgspec.json.Decoder(CustomAPI).decode
_MAX_CUSTOM_API = 4096
_MAX_HELD = 1 << 17


def read_engine(raw: msgspec.Raw) -> Placed:
    """A pod of an LLMDeployment: an engine that the operator made, with all that such a one offers.
    Of a type that this version does not know it is OpenAI's API. Raises msgspec.MsgspecError, as
    does `read_kserve`."""
    pod = _decode(raw)
    container = labels.ENGINE_CONTAINER
    ports = _ports(pod, container)
    http = ports.get("http", labels.HTTP_PORT)
    named = pod.metadata.labels.get(labels.ENGINE_TYPE)
    if named is None:
        replica = _replica(pod, container, ports, http, EngineKind.KVASIR, ports.get("grpc"))
    else:
        engine = _GUESTS.get(named, EngineKind.OPENAI)
        replica = _replica(pod, container, ports, http, engine)
        if replica is not None and engine is EngineKind.OPENAI:
            replica = replace(replica, custom=_custom_api(pod))
    if replica is not None:
        held = _held(pod, replica.id)
        replica = replace(replica, namespace=pod.metadata.namespace, adapters=held)
    return _placed(pod, labels.DEPLOYMENT, replica)


def read_kserve(raw: msgspec.Raw) -> Placed:
    """A pod of an InferenceService: its first port is the one that serves. It publishes KV events
    where ports are called so."""
    pod = _decode(raw)
    ports = _ports(pod, _KSERVE_CONTAINER)
    http = next(iter(ports.values()), _KSERVE_PORT)
    engine = _GUESTS.get(pod.metadata.labels.get(labels.ENGINE_TYPE, ""), EngineKind.OPENAI)
    replica = _replica(pod, _KSERVE_CONTAINER, ports, http, engine)
    tokenizer = tokenizer_on_hub(pod.metadata.annotations.tokenizer)
    return _placed(pod, labels.KSERVE_SERVICE, replica, tokenizer)


class Guest(NamedTuple):
    """A pod that others have made, as far as routing is concerned."""

    uid: str
    created: str
    id: str
    """One run of its first container; "" while that does not serve."""
    host: str
    node: str
    leaves: bool
    departure: Departure


def read_guest(raw: msgspec.Raw) -> Guest:
    """A pod that an LLMDeployment selects: its first container is the one that serves. Raises
    msgspec.MsgspecError."""
    pod = _decode(raw)
    status = _serving(pod, pod.spec.containers[0].name) if pod.spec.containers else None
    return Guest(
        pod.metadata.uid,
        pod.metadata.creation_timestamp,
        _id(pod, status) if status is not None else "",
        pod.status.pod_ip,
        pod.spec.node_name,
        _leaves(pod),
        _departure(pod),
    )


def guest_kind(name: str) -> EngineKind:
    """Return the kind of engine of pods that others have made; none is told the fleet's secret."""
    return _GUESTS.get(name, EngineKind.OPENAI)


def _placed(
    pod: Pod, label: str, replica: ReplicaSpec | None, tokenizer: str | None = None
) -> Placed:
    metadata = pod.metadata
    owner = metadata.labels.get(label, "")
    return Placed(
        metadata.uid, metadata.creation_timestamp, metadata.namespace, owner, replica, tokenizer
    )


def _replica(
    pod: Pod,
    container: str,
    ports: Mapping[str, int],
    http: int,
    engine: EngineKind,
    grpc: int | None = None,
) -> ReplicaSpec | None:
    """Return the replica that the pod's container is; None while it does not serve."""
    status = _serving(pod, container)
    if status is None:
        return None
    host, events, replay = pod.status.pod_ip, ports.get("events"), ports.get("replay")
    return ReplicaSpec(
        _id(pod, status),
        host,
        http,
        draining=_leaves(pod),
        departure=_departure(pod),
        engine=engine,
        grpc_port=grpc,
        kv_events=_zmq_address(host, events) if events else None,
        kv_replay=_zmq_address(host, replay) if events and replay else None,
        node=pod.spec.node_name,
        revision=pod.metadata.labels.get(labels.REVISION, ""),
        canary=pod.metadata.labels.get(labels.TRACK) == labels.CANARY,
    )


def tokenizer_on_hub(named: str | None) -> str | None:
    """Return the tokenizer if it is one on the Hub: who may annotate a pod, or make an
    LLMDeployment, may not name the router's own files."""
    if named is None or len(named) > MAX_TOKENIZER:
        return None
    try:
        return named if parse_model_uri(named).scheme == "hf" else None
    except ModelURIError:
        return None


def _custom_api(pod: Pod) -> CustomAPI | None:
    """Return how an engine of type custom is asked. None where that is not said, or cannot be: what
    goes into a request or a search is checked here too, since others may have made the pod."""
    text = pod.metadata.annotations.custom_api
    if text is None or len(text) > _MAX_CUSTOM_API:
        return None
    try:
        given = _decode_custom(text)
    except msgspec.MsgspecError:
        return None
    return given if is_safe(given) else None


def _held(pod: Pod, run: str) -> tuple[str, ...] | None:
    """Return the LoRA adapters that this run of the pod's engine holds, as its operator says; None
    while it says nothing."""
    text = pod.metadata.annotations.adapters
    found = read_held(text, run) if text is not None and len(text) <= _MAX_HELD else None
    return None if found is None else tuple(sorted(found.held))


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
    """Return True if the pod is being deleted, or will be."""
    leaves = pod.metadata.deletion_timestamp is not None
    return leaves or pod.has_condition("DisruptionTarget")


def _departure(pod: Pod) -> Departure:
    """Return when the pod is expected to end, as the operator or somebody's annotation says. A node
    that shuts down gives its pods less time than they ask for."""
    if (
        pod.reason_of("DisruptionTarget") == "TerminationByKubelet"
        or pod.metadata.annotations.leave
    ):
        return Departure.NOW
    reason = pod.reason_of(labels.LEAVING)
    if reason is None:
        return Departure.NONE
    return Departure.NOW if reason in labels.LEAVES_NOW else Departure.LATER


def _id(pod: Pod, status: ContainerStatus) -> str:
    """Return the name of one run of the pod's engine: another run has another cache."""
    return f"{pod.metadata.uid}/{status.restart_count}"


def _ports(pod: Pod, container: str) -> dict[str, int]:
    """Return the ports by name, in their order; the first of those that have none."""
    found: dict[str, int] = {}
    for each in pod.spec.containers:
        if each.name == container:
            for port in each.ports:
                found.setdefault(port.name, port.container_port)
    return found


def _zmq_address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
