"""Values of the Helm chart of vLLM's production-stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvasir.cli.kubectl.convert.draft import Draft, EngineChoice, Source
from kvasir.cli.kubectl.convert.from_command_line import take_model
from kvasir.cli.kubectl.convert.pod_fields import (
    set_scale,
    set_secret,
    take_env,
    take_pod_template,
    take_resources,
    whole,
)
from kvasir.cli.kubectl.convert.vllm_flags import parse_flags, take_flags

_CONFIG = ("maxModelLen", "dtype", "maxNumSeqs", "gpuMemoryUtilization", "enablePrefixCaching")
_GPU = "nvidia.com/gpu"
_NOT_NEEDED = ("enableEngine", "containerPort", "servicePort", "imagePullPolicy", "labels")


def convert_production_stack(values: dict[str, Any], engine: EngineChoice) -> Iterator[Draft]:
    """Yield the draft of each model that is enabled. What is of the whole chart is told with the
    first one."""
    source = Source(values)
    engines = source.part("servingEngineSpec")
    for name in _NOT_NEEDED:
        engines.take(name)
    shared = {"tolerations": engines.take("tolerations", default=[])}
    shared["runtimeClassName"] = engines.take("runtimeClassName")
    shared["schedulerName"] = engines.take("schedulerName")
    is_first = True
    for number, each in enumerate(engines.take("modelSpec", default=[])):
        if each.get("enabled", True):
            draft = _convert(each, f"modelSpec[{number}]", shared, engine)
            if is_first:
                draft.lose_rest(engines, source)
            is_first = False
            yield draft


def _convert(
    spec: dict[str, Any], path: str, shared: dict[str, Any], engine: EngineChoice
) -> Draft:
    source = Source(spec, path)
    source.take("enabled")
    draft = Draft(str(source.take("name", default="model")), engine)
    take_model(draft, str(source.take("modelURL", default="")), f"{path}.modelURL")
    repository, tag = source.take("repository"), source.take("tag")
    if repository:
        draft.set("spec.engine.image", f"{repository}:{tag}" if tag else str(repository))
    _take_config(draft, source.part("vllmConfig"))
    _take_amounts(draft, source, path)
    take_resources(draft, source.part("resources"))
    take_env(draft, source.take("env", default=[]), f"{path}.env")
    _take_secrets(draft, source, path)
    _take_pods(draft, source, shared)
    _take_volume(draft, source)
    keda, replicas = source.part("keda"), source.take("replicaCount")
    if keda.take("enabled"):
        set_scale(draft, keda.take("minReplicaCount"), keda.take("maxReplicaCount"))
        draft.lose_rest(keda)
    else:
        set_scale(draft, replicas, None)
    for off in ("lmcacheConfig", "raySpec"):
        part = source.part(off)
        if part.take("enabled"):
            draft.lose(f"{path}.{off}", "it has no counterpart")
    draft.lose_rest(source)
    return draft


def _take_config(draft: Draft, config: Source) -> None:
    draft.tensor = whole(config.take("tensorParallelSize")) or draft.tensor
    for name in _CONFIG:
        value = config.take(name)
        number = _number(value)
        draft.set(f"spec.engine.config.{name}", value if number is None else number)
    _, flags = parse_flags([str(word) for word in config.take("extraArgs", default=[])])
    take_flags(draft, flags)
    config.take("enableChunkedPrefill")  # vLLM's default, and Kvasir's only way
    draft.lose_rest(config)


def _number(value: Any) -> float | int | None:
    if not isinstance(value, str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _take_amounts(draft: Draft, source: Source, path: str) -> None:
    names = {"requests": ("requestCPU", "requestMemory"), "limits": ("limitCPU", "limitMemory")}
    for kind, fields in names.items():
        for resource, field in zip(("cpu", "memory"), fields, strict=True):
            value = source.take(field)
            if value not in (None, ""):
                draft.set(f"spec.resources.{kind}.{resource}", str(value))
    gpus, kind_of_gpu = source.take("requestGPU"), source.take("requestGPUType", default=_GPU)
    if kind_of_gpu == _GPU:
        draft.gpus = whole(gpus) or None
    else:
        draft.lose(f"{path}.requestGPUType", f"{kind_of_gpu} cannot be asked for, only {_GPU}")


def _take_secrets(draft: Draft, source: Source, path: str) -> None:
    token = source.take("hf_token")
    if isinstance(token, dict) and token.get("secretName"):
        set_secret(draft, token["secretName"], token.get("secretKey"), f"{path}.hf_token")
    elif isinstance(token, str) and token:
        draft.lose(f"{path}.hf_token", "write it into a Secret and name it in spec.model.secretRef")
    if name := source.take("envFromSecret", "name"):
        draft.set("spec.engine.envFrom", [{"secretRef": {"name": name}}])


def _take_pods(draft: Draft, source: Source, shared: dict[str, Any]) -> None:
    if source.take("tolerationsPolicy", default="append") == "append":
        own = source.take("tolerations", default=[])
        draft.set("spec.podTemplate.tolerations", [*shared["tolerations"], *own])
    else:
        draft.set("spec.podTemplate.tolerations", source.take("tolerations", default=[]))
    for name in ("runtimeClassName", "schedulerName"):
        draft.set(f"spec.podTemplate.{name}", shared[name])
    terms = source.take("nodeSelectorTerms")
    take_pod_template(draft, source)
    if terms and not draft.get("spec.podTemplate.affinity"):
        needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        draft.set("spec.podTemplate.affinity", {"nodeAffinity": needed})
    if secret := source.take("imagePullSecret"):
        draft.set("spec.podTemplate.imagePullSecrets", [{"name": secret}])
    draft.set("spec.podTemplate.annotations", source.take("podAnnotations"))


def _take_volume(draft: Draft, source: Source) -> None:
    fields = {
        "size": "pvcStorage",
        "accessModes": "pvcAccessMode",
        "storageClassName": "storageClass",
    }
    for field, name in fields.items():
        draft.set(f"spec.cache.pvc.{field}", source.take(name))
