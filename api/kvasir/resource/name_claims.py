"""Who is served under a name that several deployments want."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Claim(NamedTuple):
    """One deployment's wish. Sorts by age."""

    created: str
    """metadata.creationTimestamp: RFC 3339 in UTC, which sorts as text."""
    uid: str
    names: tuple[str, ...]
    """Its model's name and aliases."""


def owners(claims: Iterable[Claim]) -> dict[str, str]:
    """The uid of each name's owner: of those who want it the oldest, then the smaller uid."""
    owner: dict[str, str] = {}
    for claim in sorted(claims):
        for name in claim.names:
            owner.setdefault(name, claim.uid)
    return owner
