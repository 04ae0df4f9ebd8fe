"""The template of an engine's pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from kvasir.kube.objects import Object
from kvasir.models.cache.layout import KERNELS
from kvasir.quantity import parse_bytes
from kvasir.resource import labels
from kvasir.resource.class_defaults.image_mirrors import mirror_pod
from kvasir.resource.spec import Spec
from kvasir_operator.load_protection import protection
from kvasir_operator.objects import short_hash
from kvasir_operator.plan.engine.engine_container import CACHE, command, environment, has_fleet
from kvasir_operator.plan.engine.gpu_claims import GPU_CLAIM, pod_claim
from kvasir_operator.plan.engine.probes import probes
from kvasir_operator.plan.engine.scheduling import CONTAINER_SECURITY, pod_base
from kvasir_operator.plan.engine.strategic_merge import merge
from kvasir_operator.plan.engine.termination import ending
from kvasir_operator.plan.site_environment import site_mounts, site_volumes
from kvasir_operator.plan.step import PlanInputs
from kvasir_operator.spec_facts import device_of, image_of, mounted_secrets, ports_of

REVISION = labels.REVISION
_SECRETS = "kvasir.dev/secrets"
_MIN_CPU = {"sim": "250m"}
_DEFAULT_CPU = "1"
"""Cores requested for an engine whose resource names none: without a request a busy node starves it
until its liveness probe fails."""
_SHM_PER_GPU = 1 << 30
_MIN_SHM = 256 << 20


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
        "terminationGracePeriodSeconds": ending(spec.lifecycle, spec.engine).grace,
        "containers": [_container(inputs, tensor)],
        "volumes": list(_volumes(inputs, tensor)),
    }
    if spec.resources.gpu_claim is not None:
        content["resourceClaims"] = [pod_claim(inputs, spec.resources.gpu_claim)]
    if inputs.settings.router_gate:
        content["readinessGates"] = [{"conditionType": labels.ROUTED}]
    own = {**labels.common_labels(inputs.name, labels.ENGINE), **_type_label(spec)}
    if spec.engine.type == "custom":
        annotations[labels.CUSTOM_API] = json.dumps(asdict(spec.engine.custom_api))
    metadata: Object = {"labels": {**given.labels, **own}, "annotations": annotations}
    if spec.template is not None:
        metadata["labels"] = {**given.labels, **spec.template.metadata.labels, **own}
        metadata["annotations"] |= spec.template.metadata.annotations
        content = merge(content, spec.template.pod_spec())
    metadata["annotations"] |= protection(metadata["annotations"])
    content = mirror_pod(content, inputs.defaults.image_mirrors)
    metadata["labels"][REVISION] = short_hash([metadata, content])
    return {"metadata": metadata, "spec": content}


def _container(inputs: PlanInputs, tensor: int) -> Object:
    spec = inputs.spec
    times = ending(spec.lifecycle, spec.engine)
    container: Object = {
        "name": labels.ENGINE_CONTAINER,
        "image": image_of(spec, inputs.settings.images),
        **command(inputs, tensor),
        "env": list(environment(inputs, tensor)),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in ports_of(spec).items()
        ],
        "resources": _resources(inputs, tensor),
        "securityContext": _security(spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **probes(spec),
        "volumeMounts": list(_mounts(inputs)),
    }
    if spec.engine.env_from:
        container["envFrom"] = [
            each.model_dump(by_alias=True, exclude_none=True) for each in spec.engine.env_from
        ]
    if times.pre_stop:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": times.pre_stop}}}
    return container


def _type_label(spec: Spec) -> dict[str, str]:
    """Return the label of what is not Kvasir's engine, which is known by having none."""
    return {} if spec.engine.type == "kvasir" else {labels.ENGINE_TYPE: spec.engine.type}


def _security(spec: Spec) -> Object:
    """Return the container's: images of others write to where they are."""
    own = spec.engine.type == "kvasir"
    return CONTAINER_SECURITY if own else {**CONTAINER_SECURITY, "readOnlyRootFilesystem": False}


def _resources(inputs: PlanInputs, tensor: int) -> Object:
    given = inputs.spec.resources
    # A simulated engine takes what it asks for
    gpus = tensor if device_of(inputs.spec) == "cuda" else given.limits.gpus
    limits: Object = given.limits.amounts
    if gpus and given.gpu_claim is None:
        limits[given.limits.gpu_resource] = str(gpus)
    requests: Object = given.requests.model_dump(by_alias=True, exclude_none=True)
    if "cpu" not in requests and "cpu" not in limits:
        requests["cpu"] = _MIN_CPU.get(device_of(inputs.spec), _DEFAULT_CPU)
    found: Object = {"limits": limits, "requests": requests}
    if given.gpu_claim is not None:
        found["claims"] = [{"name": GPU_CLAIM}]
    return {name: amounts for name, amounts in found.items() if amounts}


def _mounts(inputs: PlanInputs) -> Iterator[Object]:
    if inputs.storage.claim is not None:
        yield {"name": "models", "mountPath": labels.MODELS_DIRECTORY, "readOnly": True}
    cache: Object = {"name": "cache", "mountPath": CACHE}
    if _kernels_are_kept(inputs):
        # By image, since kernels fit the code that made them; by GPU it is Triton that tells. By
        # LLMDeployment, since others may have the same claim, and kernels are code
        image = short_hash(image_of(inputs.spec, inputs.settings.images))
        kept = f"{KERNELS}/{inputs.name}/{image}"
        cache = {"name": "models", "mountPath": CACHE, "subPath": kept}
    yield cache
    yield {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - the pod's own
    yield {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - the pod's own
    if has_fleet(inputs):
        # A folder: a variable would stay as it was, and so would a file that is mounted by itself;
        # engines follow this one, and are not restarted for another secret
        yield {"name": "fleet", "mountPath": labels.FLEET_DIRECTORY, "readOnly": True}
    yield from site_mounts(inputs)


def _volumes(inputs: PlanInputs, tensor: int) -> Iterator[Object]:
    if inputs.storage.claim is not None:
        yield {"name": "models", "persistentVolumeClaim": {"claimName": inputs.storage.claim}}
    if not _kernels_are_kept(inputs):
        yield {"name": "cache", "emptyDir": {}}
    yield {"name": "tmp", "emptyDir": {}}
    size = f"{_shm_bytes(inputs, tensor) >> 20}Mi"
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    if has_fleet(inputs):
        items = [{"key": "secret", "path": "secret"}]
        name = inputs.settings.fleet_secret_copy
        yield {"name": "fleet", "secret": {"secretName": name, "items": items}}
    yield from site_volumes(inputs)


def _shm_bytes(inputs: PlanInputs, tensor: int) -> int:
    """Return the size of /dev/shm: room for the ranks' buffers, of at most half of the memory
    limit, since what lies in it counts as the container's."""
    size = _SHM_PER_GPU * tensor if tensor > 1 else _MIN_SHM
    try:
        limit = parse_bytes(inputs.spec.resources.limits.memory or "")
    except ValueError:
        return size
    return max(1 << 20, min(size, limit // 2))


def _kernels_are_kept(inputs: PlanInputs) -> bool:
    """Tell if compiled kernels outlive the pod: on a GPU, with a volume that may be written to."""
    return inputs.storage.cached and device_of(inputs.spec) == "cuda"
