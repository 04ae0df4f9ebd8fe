"""Times and hashes as the operator writes them into objects."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any


def format_time(moment: datetime) -> str:
    """Format as RFC 3339 in UTC, to the second, as Kubernetes does."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def short_hash(content: Any, length: int = 10) -> str:
    """Return hex digits that differ when the JSON of `content` does."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
