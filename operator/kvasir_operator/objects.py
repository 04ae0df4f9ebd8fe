"""What is asked of Kubernetes objects, which are plain dictionaries here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def name_of(it: Mapping[str, Any]) -> str:
    """metadata.name."""
    return str(it["metadata"]["name"])


def namespace_of(it: Mapping[str, Any]) -> str:
    """metadata.namespace; "" for what has none."""
    return str(it["metadata"].get("namespace", ""))


def is_terminating(it: Mapping[str, Any]) -> bool:
    """Whether it is being deleted."""
    return bool(it["metadata"].get("deletionTimestamp"))


def annotation(it: Mapping[str, Any], name: str) -> str:
    """An annotation's value; "" where there is none."""
    return str((it["metadata"].get("annotations") or {}).get(name, ""))


def label(it: Mapping[str, Any], name: str) -> str:
    """A label's value; "" where there is none."""
    return str((it["metadata"].get("labels") or {}).get(name, ""))


def condition(it: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty where there is none."""
    for each in (it.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            return dict(each)
    return {}


def holds(it: Mapping[str, Any], kind: str) -> bool:
    """Whether the condition of that type is True."""
    return condition(it, kind).get("status") == "True"


def container_status(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """The status of one container; empty before it has one."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if each.get("name") == container:
            return dict(each)
    return {}


def parse_time(text: str) -> datetime:
    """RFC 3339 as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def short_hash(content: Any, length: int = 10) -> str:
    """Hex digits that differ when the JSON of `content` does."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
