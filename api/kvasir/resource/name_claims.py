"""The names that a deployment is served under, and who has one that several want."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Claim(NamedTuple):
    """Names that one deployment claims. Sorts by age."""

    created: str
    """metadata.creationTimestamp: RFC 3339 in UTC, which sorts as text."""
    uid: str
    names: tuple[str, ...]
    """Name and aliases of the deployment's model."""


def served_names(deployment: str, name: str | None, aliases: Iterable[str]) -> list[str]:
    """Names that clients may use: the model's, by default its deployment's, then the aliases."""
    return [name or deployment, *aliases]


def names_of(resource: Mapping[str, Any]) -> list[str]:
    """The served names of a resource as the API server has it, also of one that is not valid."""
    model = (resource.get("spec") or {}).get("model") or {}
    aliases = map(str, model.get("aliases") or ())
    return served_names(str(resource["metadata"]["name"]), model.get("name"), aliases)


def claim_of(resource: Mapping[str, Any]) -> Claim:
    """The names that a resource wants, also one that is not valid."""
    metadata = resource["metadata"]
    created = str(metadata.get("creationTimestamp", ""))
    return Claim(created, str(metadata["uid"]), tuple(names_of(resource)))


def owners(claims: Iterable[Claim]) -> dict[str, str]:
    """The uid of each name's owner: of those who want it the oldest, then the smaller uid."""
    owner: dict[str, str] = {}
    for claim in sorted(claims):
        for name in claim.names:
            owner.setdefault(name, claim.uid)
    return owner
