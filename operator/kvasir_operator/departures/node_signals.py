"""Reason why a node will leave, by the signs that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kvasir.kube.objects import Object, name_of
from kvasir.resource import labels
from kvasir_operator.departures.signs import NodeSignals

CORDON: Final = "node.kubernetes.io/unschedulable"
"""Taint that the control plane adds to a node with spec.unschedulable, a moment later."""
_MAX_TEXT = 200


class Notice(NamedTuple):
    """Wanted condition of a pod."""

    reason: str
    """One of the reasons beside `labels.LEAVING`."""
    message: str

    @property
    def leaves(self) -> bool:
        """Tell if the pod will end."""
        return self.reason != labels.STAYS


def kept_node(node: Mapping[str, Any]) -> Object:
    """Return the part of a node that is read here."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    names = ("type", "status", "reason")
    return {
        "metadata": {"name": name_of(node)},
        "spec": {
            "unschedulable": bool(spec.get("unschedulable")),
            "taints": [{"key": each.get("key", "")} for each in spec.get("taints") or ()],
        },
        "status": {
            "conditions": [
                {name: str(each.get(name) or "")[:_MAX_TEXT] for name in names}
                for each in status.get("conditions") or ()
            ]
        },
    }


def notice_of(node: Object, signals: NodeSignals, pod: Object) -> Notice | None:
    """Return why the node of `pod` will leave; None if nothing says so. A taint that the pod
    tolerates by its key is none of its business."""
    tolerated = {each.get("key") for each in pod["spec"].get("tolerations") or ()}
    signs = {key: text for key, text in _signs(node).items() if key not in tolerated}
    where = f"Node {name_of(node)}"
    for reason, heeded in ((labels.NODE_ENDS, signals.ends), (labels.NODE_LEAVES, signals.leaves)):
        found = sorted(heeded & signs.keys())
        if found:
            return Notice(reason, f"{where} {signs[found[0]]}.")
    return None


def _signs(node: Object) -> dict[str, str]:
    """Return clauses on all that may be a sign, by their names in `NodeSignals`."""
    signs = {CORDON: "is cordoned"} if node["spec"]["unschedulable"] else {}
    for each in node["spec"]["taints"]:
        key = str(each["key"])
        signs[key] = "is cordoned" if key == CORDON else f"has the taint {key}"
    for each in node["status"]["conditions"]:
        told = f"{each['type']}={each['status']}"
        about = f" ({each['reason']})" if each["reason"] else ""
        signs[told] = f"has the condition {told}{about}"
    return signs
