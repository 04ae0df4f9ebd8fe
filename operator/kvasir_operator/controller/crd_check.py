"""Check that the cluster's CustomResourceDefinition knows all that this operator writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.resource import labels
from kvasir.resource.crd_writer import crd
from kvasir_operator.kinds import CRDS


class CRDMissingError(Exception):
    """The cluster has no LLMDeployments."""


async def missing_fields(cluster: Cluster) -> tuple[str, ...]:
    """Fields of this operator's schema that the installed one lacks, such as spec.router.

    Raises CRDMissingError, and ApiError when the API server is not reached. Nothing is missing
    where definitions may not be read.
    """
    name = f"{labels.PLURAL}.{labels.GROUP}"
    try:
        installed = await cluster.get(CRDS, None, name)
    except ApiError as error:
        if error.status == 403:
            return ()
        raise
    if installed is None:
        raise CRDMissingError(
            f"the cluster has no CustomResourceDefinition {name}; install the chart with"
            " crds.enabled=true"
        )
    return tuple(_lacking(_schema(installed), _schema(crd()), ""))


def _schema(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    for version in definition["spec"]["versions"]:
        if version["name"] == labels.VERSION:
            found: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
            return found
    return {}


def _lacking(has: Mapping[str, Any], needs: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, part in (needs.get("properties") or {}).items():
        own = (has.get("properties") or {}).get(name)
        if own is None:
            yield f"{path}{name}"
        else:
            yield from _lacking(own, part, f"{path}{name}.")
    if "items" in needs and "items" in has:
        yield from _lacking(has["items"], needs["items"], f"{path.removesuffix('.')}[].")
