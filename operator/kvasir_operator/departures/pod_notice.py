"""Condition `kvasir.dev/leaving` of one pod: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvasir.kube.objects import Object, annotation, condition, is_terminating
from kvasir.resource import labels
from kvasir_operator.departures.node_signals import Notice, notice_of
from kvasir_operator.departures.signs import NodeSignals

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO: Final = "-1000000"
"""Deletion cost of a pod that leaves: where others have replaced it, it is the one to go.
https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost"""

_NODE_REASONS = (labels.NODE_LEAVES, labels.NODE_ENDS)
_NOT_WATCHED = Notice(labels.STAYS, "Nodes are not watched any more.")
_MAX_TEXT = 200


def change_of(pod: Object, node: Object | None, signals: NodeSignals | None) -> Notice | None:
    """Return what the pod's condition shall become; None = it stays as it is. `node` None = nothing
    is known of it, which changes nothing: where it is gone, its pod is about to go. `signals` None
    = nodes are not watched: what was said of them while they were would never end otherwise."""
    if is_terminating(pod):
        return None
    before = condition(pod, labels.LEAVING)
    leaves = before.get("status") == "True"
    asks = " ".join(annotation(pod, labels.LEAVE).split())
    if asks:
        wanted: Notice | None = Notice(labels.POD_ASKS, f"{_shown(asks)}.")
    elif signals is None:
        wanted = _NOT_WATCHED if before.get("reason") in _NODE_REASONS else _stays(before)
    elif node is None:
        gone = leaves and before.get("reason") in _NODE_REASONS
        wanted = None if gone else _stays(before)
    else:
        wanted = notice_of(node, signals, pod) or _stays(before)
    if wanted is None or not (wanted.leaves or leaves):
        return None
    same = (before.get("reason"), before.get("message")) == tuple(wanted)
    return None if same and leaves is wanted.leaves else wanted


def annotations_for(pod: Object, notice: Notice) -> Mapping[str, str | None]:
    """Return the annotations to change with the condition; a cost that a user gave stays."""
    cost = annotation(pod, DELETION_COST)
    if notice.leaves:
        return {} if cost else {DELETION_COST: FIRST_TO_GO}
    return {DELETION_COST: None} if cost == FIRST_TO_GO else {}


def _stays(before: Mapping[str, object]) -> Notice:
    return Notice(labels.STAYS, f"It is over: {before.get('message') or 'it stays.'}")


def _shown(text: str) -> str:
    return text.rstrip(".") if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
