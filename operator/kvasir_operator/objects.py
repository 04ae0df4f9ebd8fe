"""Times, hashes and status bodies as the operator writes them."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from kvasir.resource import labels
from kvasir_operator.kinds import LLMDEPLOYMENTS


def format_time(moment: datetime) -> str:
    """Format as RFC 3339 in UTC, to the second, as Kubernetes does."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def short_hash(content: Any, length: int = 10) -> str:
    """Return hex digits that differ when the JSON of `content` does."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def status_manifest(resource: Any, status: Any, **metadata: str) -> dict[str, Any]:
    """Return the body of a server-side apply of an LLMDeployment's status, with more `metadata`."""
    known = resource["metadata"]
    return {
        "apiVersion": LLMDEPLOYMENTS.api_version,
        "kind": "LLMDeployment",
        "metadata": {
            "name": known["name"],
            "namespace": known["namespace"],
            # Another LLMDeployment of that name must not get this status
            "uid": known["uid"],
            **metadata,
        },
        "status": status,
    }


def event_manifest(
    resource: Any, kind: str, reason: str, message: str, component: str = labels.MANAGER
) -> dict[str, Any]:
    """Return an Event about an LLMDeployment; `kind`: Normal or Warning."""
    known, now = resource["metadata"], datetime.now(UTC)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{known['name'][:40]}.",
            "namespace": known["namespace"],
        },
        "involvedObject": {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": "LLMDeployment",
            "name": known["name"],
            "namespace": known["namespace"],
            "uid": known["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": component},
        "firstTimestamp": format_time(now),
        "lastTimestamp": format_time(now),
        "count": 1,
    }
