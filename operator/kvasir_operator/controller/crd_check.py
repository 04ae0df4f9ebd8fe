"""Check that the cluster's CustomResourceDefinition knows all that this operator writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.resource import labels
from kvasir.resource.crd_writer import crd
from kvasir_operator.kinds import CLASSES, CRDS, LLMDEPLOYMENTS, MODEL_NAMES

NEEDED = (LLMDEPLOYMENTS, CLASSES, MODEL_NAMES)
"""Kinds without which an operator cannot work."""

_INDISPENSABLE = ("spec.className", "status.className")


class CRDMissingError(Exception):
    """The cluster lacks a kind that the operator needs, or has it without what keeps two operators
    apart."""


async def missing_kind(cluster: Cluster) -> str | None:
    """Name of a needed kind that the API server does not serve; None when it serves all.

    Raises ApiError.
    """
    for kind in NEEDED:
        if not await cluster.serves(kind.api_version, kind.plural):
            return f"{kind.plural}.{labels.GROUP}"
    return None


def require_classes(lacking: Collection[str]) -> None:
    """Raise CRDMissingError for a definition of LLMDeployments that is from before their classes:
    two operators would write the same objects."""
    found = [field for field in _INDISPENSABLE if field in lacking]
    if found:
        raise CRDMissingError(
            f"the installed CustomResourceDefinition {labels.PLURAL}.{labels.GROUP} lacks"
            f" {' and '.join(found)}; upgrade it with crds.enabled=true (and crds.adopt=true if it"
            " is another release's)"
        )


def without_fields(status: Mapping[str, Any], lacking: Collection[str]) -> dict[str, Any]:
    """Return `status` without the fields that the installed definition lacks: an API server would
    refuse all of it."""
    return dict(_without(status, lacking, "status."))


def _without(part: Mapping[str, Any], lacking: Collection[str], path: str) -> Mapping[str, Any]:
    return {
        name: _without(value, lacking, f"{path}{name}.") if isinstance(value, Mapping) else value
        for name, value in part.items()
        if f"{path}{name}" not in lacking
    }


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
