"""The template of an engine's pod."""

from __future__ import annotations

from collections.abc import Iterator

from kvasir.kube.objects import Object
from kvasir.models.cache.layout import KERNELS
from kvasir.quantity import parse_bytes
from kvasir.resource import engine_command, labels
from kvasir_operator.objects import short_hash
from kvasir_operator.plan.engine.scheduling import CONTAINER_SECURITY, pod_base
from kvasir_operator.plan.engine.strategic_merge import merge
from kvasir_operator.plan.engine.termination import ending
from kvasir_operator.plan.step import PlanInputs
from kvasir_operator.spec_facts import device_of, image_of, mounted_secrets

REVISION = labels.REVISION
_SECRETS = "kvasir.dev/secrets"
_MIN_CPU = {"sim": "250m"}
_DEFAULT_CPU = "1"
"""Cores requested for an engine whose resource names none: without a request a busy node starves it
until its liveness probe fails."""
_SHM_PER_GPU = 1 << 30
_MIN_SHM = 256 << 20
_CACHE = "/cache"


def pod_template(inputs: PlanInputs, tensor: int) -> Object:
    """Return metadata and spec, with the revision label that stands for all of it."""
    spec = inputs.spec
    given = spec.pod_template
    secrets = {name: inputs.observed.secrets.get(name) for name in sorted(mounted_secrets(spec))}
    annotations = dict(given.annotations)
    if secrets:
        annotations[_SECRETS] = short_hash(secrets)
    content: Object = {
        **pod_base(inputs),
        "terminationGracePeriodSeconds": ending(spec.lifecycle).grace,
        "containers": [_container(inputs, tensor)],
        "volumes": list(_volumes(inputs, tensor)),
    }
    if inputs.settings.router_gate:
        content["readinessGates"] = [{"conditionType": labels.ROUTED}]
    own = labels.common_labels(inputs.name, labels.ENGINE)
    metadata: Object = {"labels": {**given.labels, **own}, "annotations": annotations}
    if spec.template is not None:
        metadata["labels"] = {**given.labels, **spec.template.metadata.labels, **own}
        metadata["annotations"] |= spec.template.metadata.annotations
        content = merge(content, spec.template.pod_spec())
    metadata["labels"][REVISION] = short_hash([metadata, content])
    return {"metadata": metadata, "spec": content}


def _container(inputs: PlanInputs, tensor: int) -> Object:
    spec = inputs.spec
    times = ending(spec.lifecycle)
    container: Object = {
        "name": labels.ENGINE_CONTAINER,
        "image": image_of(spec, inputs.settings.images),
        "args": _arguments(inputs, tensor),
        "env": list(_environment(inputs)),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in labels.ENGINE_PORTS.items()
        ],
        "resources": _resources(inputs, tensor),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _probe("/ready", 2, spec.lifecycle.startup_seconds // 2),
        "readinessProbe": _probe("/ready", 2, 2),
        "livenessProbe": _probe("/live", 10, 3),
        "volumeMounts": list(_mounts(inputs)),
    }
    if times.pre_stop:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": times.pre_stop}}}
    return container


def _arguments(inputs: PlanInputs, tensor: int) -> list[str]:
    command = engine_command(
        inputs.deployment,
        host="0.0.0.0",
        port=labels.HTTP_PORT,
        model=inputs.storage.model,
        tensor=tensor,
        program=(),
    )
    config = inputs.spec.engine.config
    # Left to itself, an engine whose GPU is not visible would serve on the CPU, without a word
    chosen = config.device == "auto" and device_of(inputs.spec) == "cuda"
    return [
        *command,
        *(("--device", "cuda") if chosen else ()),
        *("--grpc-port", str(labels.GRPC_PORT)),
        *("--kv-events-endpoint", f"tcp://*:{labels.EVENTS_PORT}"),
        *("--kv-events-replay-endpoint", f"tcp://*:{labels.REPLAY_PORT}"),
        *(
            ("--fleet-secret-file", f"{labels.FLEET_DIRECTORY}/secret")
            if _has_fleet(inputs)
            else ()
        ),
    ]


def _environment(inputs: PlanInputs) -> Iterator[Object]:
    """Return the variables: the user's own value of one replaces ours, since an API server refuses
    a name that is given twice."""
    ours = {
        "HOME": "/tmp",  # noqa: S108 - the pod's own
        "KVASIR_CACHE": _CACHE,
        "XDG_CACHE_HOME": _CACHE,
        "TRITON_CACHE_DIR": f"{_CACHE}/triton",
        "HF_HUB_OFFLINE": "1",
    }
    theirs = {variable.name for variable in inputs.spec.engine.env}
    for name, value in ours.items():
        if name not in theirs:
            yield {"name": name, "value": value}
    for variable in inputs.spec.engine.env:
        yield variable.model_dump(by_alias=True, exclude_none=True)


def _resources(inputs: PlanInputs, tensor: int) -> Object:
    given = inputs.spec.resources
    # A simulated engine takes what it asks for
    gpus = tensor if device_of(inputs.spec) == "cuda" else given.limits.gpus
    limits: Object = given.limits.model_dump(by_alias=True, exclude_none=True, exclude={"gpus"})
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    requests: Object = given.requests.model_dump(by_alias=True, exclude_none=True)
    if "cpu" not in requests and "cpu" not in limits:
        requests["cpu"] = _MIN_CPU.get(device_of(inputs.spec), _DEFAULT_CPU)
    found = {"limits": limits, "requests": requests}
    return {name: amounts for name, amounts in found.items() if amounts}


def _probe(path: str, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _mounts(inputs: PlanInputs) -> Iterator[Object]:
    if inputs.storage.claim is not None:
        yield {"name": "models", "mountPath": labels.MODELS_DIRECTORY, "readOnly": True}
    cache: Object = {"name": "cache", "mountPath": _CACHE}
    if _kernels_are_kept(inputs):
        # By image, since kernels fit the code that made them; by GPU it is Triton that tells. By
        # LLMDeployment, since others may have the same claim, and kernels are code
        image = short_hash(image_of(inputs.spec, inputs.settings.images))
        kept = f"{KERNELS}/{inputs.name}/{image}"
        cache = {"name": "models", "mountPath": _CACHE, "subPath": kept}
    yield cache
    yield {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - the pod's own
    yield {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - the pod's own
    if _has_fleet(inputs):
        # A folder: a variable would stay as it was, and so would a file that is mounted by itself;
        # engines follow this one, and are not restarted for another secret
        yield {"name": "fleet", "mountPath": labels.FLEET_DIRECTORY, "readOnly": True}


def _volumes(inputs: PlanInputs, tensor: int) -> Iterator[Object]:
    if inputs.storage.claim is not None:
        yield {"name": "models", "persistentVolumeClaim": {"claimName": inputs.storage.claim}}
    if not _kernels_are_kept(inputs):
        yield {"name": "cache", "emptyDir": {}}
    yield {"name": "tmp", "emptyDir": {}}
    size = f"{_shm_bytes(inputs, tensor) >> 20}Mi"
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    if _has_fleet(inputs):
        items = [{"key": "secret", "path": "secret"}]
        name = inputs.settings.fleet_secret_copy
        yield {"name": "fleet", "secret": {"secretName": name, "items": items}}


def _shm_bytes(inputs: PlanInputs, tensor: int) -> int:
    """Return the size of /dev/shm: room for the ranks' buffers, of at most half of the memory
    limit, since what lies in it counts as the container's."""
    size = _SHM_PER_GPU * tensor if tensor > 1 else _MIN_SHM
    try:
        limit = parse_bytes(inputs.spec.resources.limits.memory or "")
    except ValueError:
        return size
    return max(1 << 20, min(size, limit // 2))


def _has_fleet(inputs: PlanInputs) -> bool:
    return bool(inputs.settings.fleet_secret.text)


def _kernels_are_kept(inputs: PlanInputs) -> bool:
    """Tell if compiled kernels outlive the pod: on a GPU, with a volume that may be written to."""
    return inputs.storage.cached and device_of(inputs.spec) == "cuda"
