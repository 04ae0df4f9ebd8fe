"""Find LLMDeployment fields that need a cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from kvasir.cli.local.upstreams import upstream_problems
from kvasir.model_uri import ModelURIError
from kvasir.resource import LLMDeployment
from kvasir.resource.engine_spec import Engine
from kvasir.resource.gpus.resources_spec import NVIDIA, Resources


def cluster_only(deployment: LLMDeployment) -> Iterator[str]:
    """A sentence for everything that `deployment` cannot be run without on one machine."""
    name, spec = deployment.name, deployment.spec
    try:
        if spec.external is None:
            spec.model.parsed_uri.require_local()
    except ModelURIError as error:
        yield f"{name}: spec.model.uri: {error}"
    yield from upstream_problems(deployment, os.environ)
    for variable in spec.engine.env:
        if variable.value_from is not None:
            yield (
                f"{name}: spec.engine.env {variable.name}: valueFrom takes a value from a cluster;"
                " give value, or leave it out and set the variable where you start kvasir up"
            )
    if spec.engine.env_from:
        yield (
            f"{name}: spec.engine.envFrom takes variables from a cluster; remove it, and set them"
            " where you start kvasir up"
        )
    if spec.profile is not None:
        yield (
            f"{name}: spec.profile {spec.profile} is of an LLMDeploymentClass, which only a cluster"
            " has; remove it, and write resources and engine here"
        )
    if spec.adapters:
        yield (
            f"{name}: spec.adapters are downloaded and loaded by a cluster's operator; remove them,"
            " or use a cluster"
        )
    yield from _engine_problems(name, spec.engine)
    yield from _gpu_problems(name, spec.resources)
    if spec.parallelism.tensor == "auto" and not spec.resources.limits.gpus:
        yield (
            f"{name}: spec.parallelism.tensor auto chooses among a cluster's GPUs; set"
            " resources.limits nvidia.com/gpu, or write a number"
        )


def _gpu_problems(name: str, resources: Resources) -> Iterator[str]:
    """Yield a sentence for GPUs that only a cluster hands out."""
    kind = resources.limits.gpu_resource
    if resources.gpu_claim is not None:
        yield (
            f"{name}: spec.resources.gpuClaim asks a cluster for GPUs; write resources.limits"
            f" {NVIDIA}: {resources.gpus}"
        )
    elif resources.gpus and kind != NVIDIA:
        yield (
            f"{name}: spec.resources.limits {kind} is handed out by a cluster's device plugin;"
            f" write {NVIDIA}, and set CUDA_VISIBLE_DEVICES to MIG devices where those are meant"
        )


def _engine_problems(name: str, engine: Engine) -> Iterator[str]:
    """Yield a sentence if the program of an engine that is not Kvasir's cannot be run here."""
    if engine.type == "custom":
        words = [*engine.command, *engine.args]
        if not engine.command:
            yield (
                f"{name}: spec.engine.type custom: kvasir up runs no images; give"
                " spec.engine.command, or use a cluster"
            )
        elif not any("KVASIR_PORT" in word for word in words):
            yield (
                f"{name}: spec.engine.command has no $(KVASIR_PORT): kvasir up chooses each"
                " replica's port; put it where the engine takes its port"
            )
    elif engine.type != "kvasir" and shutil.which(engine.traits.program[0]) is None:
        yield (
            f"{name}: spec.engine.type {engine.type}: {engine.traits.program[0]!r} is not on PATH;"
            " install it and start kvasir up in its environment, or use a cluster"
        )
