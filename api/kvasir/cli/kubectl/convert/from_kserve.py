"""KServe's InferenceService (serving.kserve.io/v1beta1)."""

from __future__ import annotations

from typing import Any

from kvasir.cli.kubectl.convert.draft import ConvertError, Draft, EngineChoice, Source
from kvasir.cli.kubectl.convert.from_command_line import split_model, take_model, without_program
from kvasir.cli.kubectl.convert.pod_fields import (
    set_scale,
    set_uri,
    take_env,
    take_pod_template,
    take_resources,
)
from kvasir.cli.kubectl.convert.vllm_flags import parse_flags, take_flags

_FORMATS = ("huggingface", "vllm", "kvasir")
_OWN_FLAGS = ("--model-dir", "--backend", "--task", "--http-port", "--enable-docs-url")
"""Flags of KServe's own server that mean nothing here."""
_MOUNT = "/mnt/models"


def convert_kserve(document: dict[str, Any], engine: EngineChoice) -> Draft:
    """Return the draft of an InferenceService. Raises ConvertError."""
    source = Source(document)
    draft = Draft(
        source.take("metadata", "name", default="model"),
        engine,
        source.take("metadata", "namespace"),
    )
    for known in ("apiVersion", "kind", "status"):
        source.take(known)
    _take_metadata(draft, source)
    predictor = source.part("spec", "predictor")
    low, high = predictor.take("minReplicas"), predictor.take("maxReplicas")
    metric = predictor.take("scaleMetric", default="concurrency")
    target = predictor.take("scaleTarget")
    if metric != "concurrency" and target is not None:
        draft.lose("spec.predictor.scaleMetric", f"{metric} is no metric of spec.autoscaling")
        target = None
    set_scale(draft, low, high, target)
    weight = predictor.take("canaryTrafficPercent")
    if isinstance(weight, int) and 0 < weight < 100:
        draft.set("spec.rollout.canary", {"steps": [{"weight": weight, "pause": {}}]})
    take_pod_template(draft, predictor)
    model, container = predictor.part("model"), _container(draft, predictor)
    _take_model(draft, model)
    _take_container(draft, container if container is not None else model)
    draft.lose_rest(*(() if container is None else (container,)), model, predictor, source)
    return draft


def _take_metadata(draft: Draft, source: Source) -> None:
    metadata = source.part("metadata")
    for name in ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"):
        metadata.take(name)
    annotations = metadata.part("annotations")
    annotations.take("serving.kserve.io/deploymentMode")
    annotations.take("kubectl.kubernetes.io/last-applied-configuration")
    if labels := metadata.take("labels"):
        draft.document["metadata"]["labels"] = labels
    draft.lose_rest(annotations, metadata)


def _container(draft: Draft, predictor: Source) -> Source | None:
    containers = predictor.take("containers", default=[])
    if not containers:
        return None
    for other in containers[1:]:
        draft.lose(
            f"spec.predictor.containers {other.get('name')}", "see spec.template for sidecars"
        )
    return Source(containers[0], "spec.predictor.containers[0]")


def _take_model(draft: Draft, model: Source) -> None:
    kind = model.take("modelFormat", "name")
    if kind is not None and str(kind).lower() not in _FORMATS:
        raise ConvertError(
            f"{draft.name}: modelFormat {kind} is no language model's; only"
            f" {', '.join(_FORMATS)} can be converted"
        )
    model.take("modelFormat", "version")
    model.take("protocolVersion")
    if runtime := model.take("runtime"):
        draft.lose("spec.predictor.model.runtime", f"what the runtime {runtime} sets is not known")
    if uri := model.take("storageUri"):
        set_uri(draft, str(uri), "spec.predictor.model.storageUri")


def _take_container(draft: Draft, container: Source) -> None:
    container.take("name")
    draft.set("spec.engine.image", container.take("image"))
    words = [*(container.take("command", default=[])), *(container.take("args", default=[]))]
    plain, flags = parse_flags(without_program([str(word) for word in words]))
    name, flags = split_model(flags, "--model-name")
    model, flags = split_model(flags, "--model", "--model-id")
    _, flags = split_model(flags, *_OWN_FLAGS)
    model = plain[0] if plain else model
    if not draft.get("spec.model.uri"):
        if model is None or model.startswith(_MOUNT):
            raise ConvertError(f"{draft.name}: no storageUri and no model among its arguments")
        take_model(draft, model, "args")
    if name and name != draft.name:
        draft.set("spec.model.name", name)
    take_flags(draft, flags)
    take_env(draft, container.take("env", default=[]), "env")
    draft.set("spec.engine.envFrom", container.take("envFrom"))
    take_resources(draft, container.part("resources"))
