"""Find LLMDeployment fields that need a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kvasir.cli.local.upstreams import upstream_problems
from kvasir.model_uri import ModelURIError
from kvasir.resource import LLMDeployment


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
                f"{name}: spec.engine.env {variable.name}: valueFrom names a Secret of a cluster;"
                " give value, or leave it out and set the variable where you start kvasir up"
            )
    if spec.parallelism.tensor == "auto" and not spec.resources.limits.gpus:
        yield (
            f"{name}: spec.parallelism.tensor auto chooses among a cluster's GPUs; set"
            " resources.limits nvidia.com/gpu, or write a number"
        )
