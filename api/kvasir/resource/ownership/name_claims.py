"""The names that a deployment is served under, and the claims that say whose a name is.

A claim is a cluster-scoped ModelName: whoever creates it first has the name. Its own name is made
from the class and the model name, so two claims of one name are one object, and an API server lets
only one of them be created.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MAX_OBJECT_NAME = 253
"""Characters of an object's name."""

_HASH_DIGITS = 32
_PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_HASHED = re.compile(rf"(.*--)?[0-9a-f]{{{_HASH_DIGITS}}}")
_NOT_PLAIN = re.compile(r"[^a-z0-9]+")


class Holder(NamedTuple):
    """The LLMDeployment that has claimed a name, by namespace and name: one that is restored from a
    backup has another uid, and keeps its claims."""

    namespace: str
    name: str


class NameClaim(NamedTuple):
    """One ModelName."""

    object_name: str
    uid: str
    """uid of the ModelName itself."""
    class_name: str
    """Class in which the name is claimed."""
    name: str
    """Name of a model, an alias or a LoRA adapter, as clients put it into `model`."""
    holder: Holder
    holder_uid: str
    """uid of the LLMDeployment that made the claim."""


def served_names(deployment: str, name: str | None, aliases: Iterable[str]) -> list[str]:
    """Names that clients may use: the model's, by default its deployment's, then the aliases."""
    return [name or deployment, *aliases]


def names_of(resource: Mapping[str, Any]) -> list[str]:
    """The names that a resource claims, as the API server has it, also of one that is not valid:
    the served ones, then its adapters'."""
    model = (resource.get("spec") or {}).get("model") or {}
    aliases = map(str, model.get("aliases") or ())
    own = served_names(str(resource["metadata"]["name"]), model.get("name"), aliases)
    return [*own, *adapter_names(resource)]


def adapter_names(resource: Mapping[str, Any]) -> list[str]:
    """The names of the LoRA adapters of a resource as the API server has it."""
    found = (resource.get("spec") or {}).get("adapters") or ()
    return [str(each.get("name")) for each in found]


def claim_object_name(class_name: str, name: str) -> str:
    """Name of the ModelName that claims `name` in a class: CLASS.NAME where that can be an object's
    name, else CLASS.SLUG--HASH.

    A class has no dot, so what follows the first one is the model's part. A plain name that looks
    as if it ended in a hash is hashed too, so no two names share an object.
    """
    prefix = f"{class_name}."
    plain = _PLAIN.fullmatch(name) and not _HASHED.fullmatch(name)
    if plain and len(prefix) + len(name) <= MAX_OBJECT_NAME:
        return prefix + name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    room = MAX_OBJECT_NAME - len(prefix) - len("--") - _HASH_DIGITS
    slug = _NOT_PLAIN.sub("-", name.lower())[:room].strip("-")
    return f"{prefix}{slug}--{digest}" if slug else prefix + digest


def read_claim(it: Mapping[str, Any]) -> NameClaim | None:
    """The claim that a ModelName is; None for one that was not made as `claim_object_name` says."""
    metadata, spec = it["metadata"], it.get("spec") or {}
    by = spec.get("claimedBy") or {}
    claim = NameClaim(
        str(metadata["name"]),
        str(metadata.get("uid", "")),
        str(spec.get("className", "")),
        str(spec.get("name", "")),
        Holder(str(by.get("namespace", "")), str(by.get("name", ""))),
        str(by.get("uid", "")),
    )
    right = claim.object_name == claim_object_name(claim.class_name, claim.name)
    return claim if right else None


def holders(claims: Iterable[NameClaim | None], class_name: str) -> dict[str, Holder]:
    """The holder of each name that is claimed in a class."""
    return {each.name: each.holder for each in claims if each and each.class_name == class_name}
