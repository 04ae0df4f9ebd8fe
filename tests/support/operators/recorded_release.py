"""A former release as it left a cluster: what its users and its operator had applied.

`release_recorder.py` has made the recordings.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypedDict

from kvasir.kube import Kind
from kvasir.kube.client import Cluster
from kvasir.resource import labels
from kvasir_operator import kinds

PACKAGES = Path(__file__).parents[2] / "integration" / "chart" / "packages"
"""Charts and recordings of former releases."""

_KINDS = {kind.plural: kind for kind in vars(kinds).values() if isinstance(kind, Kind)}


class Write(TypedDict):
    """One server-side apply."""

    plural: str
    manager: str
    part: str
    """Subresource; "" for the object."""
    body: dict[str, Any]


def writes_of(version: str) -> list[Write]:
    """Return what users and the operator of that release applied, in order; UID-NAME stands for the
    UID of an LLMDeployment."""
    found: list[Write] = json.loads((PACKAGES / f"kvasir-{version}.json").read_text())
    return found


async def play(cluster: Cluster, namespace: str, writes: list[Write]) -> None:
    """Apply the writes again in another namespace, as the same field managers."""
    made: dict[tuple[Kind, str], Any] = {}
    for write in writes:
        text = json.dumps(write["body"])
        for kind, name in made:
            if kind is kinds.LLMDEPLOYMENTS:
                text = text.replace(f"UID-{name}", made[kind, name]["metadata"]["uid"])
        body = json.loads(text)
        body["metadata"]["namespace"] = namespace
        kind = _KINDS[write["plural"]]
        if kind is kinds.JOBS:
            body["metadata"]["name"] = _download_name(body, made)
        answer = await cluster.apply(kind, body, write["manager"], write["part"])
        made[kind, answer["metadata"]["name"]] = answer


def _download_name(job: Any, made: dict[tuple[Kind, str], Any]) -> str:
    """Return the name that release 0.1.0 gave a download onto this cluster's volume."""
    deployment = job["metadata"]["labels"][labels.DEPLOYMENT]
    model = made[kinds.LLMDEPLOYMENTS, deployment]["spec"]["model"]
    volume = made[kinds.CLAIMS, f"{deployment}-models"]["metadata"]["uid"]
    content = json.dumps([model["uri"], model.get("revision"), volume], separators=(",", ":"))
    return f"{deployment}-dl-{hashlib.sha256(content.encode()).hexdigest()[:7]}"
