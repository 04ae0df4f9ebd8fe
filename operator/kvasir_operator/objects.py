"""Times, hashes and status bodies as the operator writes them."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

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
