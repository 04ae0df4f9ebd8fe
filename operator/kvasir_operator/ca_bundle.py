"""The certificates that a class names: are they in an LLMDeployment's namespace?"""

from __future__ import annotations

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.resource.class_defaults.defaults_spec import CABundle
from kvasir_operator.kinds import CONFIG_MAPS, SECRETS

_KINDS = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}


async def ca_bundle_problem(cluster: Cluster, bundle: CABundle | None, namespace: str) -> str:
    """Return a clause on why the certificates cannot be mounted in a namespace; "" = they can, or
    there are none, or the operator may not read them. Raises ApiError."""
    if bundle is None:
        return ""
    named, kind = bundle.ref, bundle.kind
    try:
        found = await cluster.get(_KINDS[kind], namespace, named.name)
    except ApiError as error:
        if error.status == 403:
            return ""
        raise
    if found is None:
        return f"{kind} {named.name!r} does not exist"
    if named.key not in {**(found.get("data") or {}), **(found.get("binaryData") or {})}:
        return f"{kind} {named.name!r} has no key {named.key!r}"
    return ""
