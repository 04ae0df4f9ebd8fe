"""Which nodes will leave, and why."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource import labels
from kvasir_operator.departures.node_signals import kept_node, notice_of
from kvasir_operator.departures.signs import ENDS, LEAVES, NodeSignals

POD: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {}}


def node(
    *taints: str, cordoned: bool = False, conditions: tuple[tuple[str, str, str], ...] = ()
) -> dict[str, Any]:
    """A node as the API has it, kept as the operator keeps it."""
    spec: dict[str, Any] = {"podCIDR": "10.0.0.0/24"}
    if taints:
        spec["taints"] = [{"key": each, "effect": "NoSchedule"} for each in taints]
    if cordoned:
        spec["unschedulable"] = True
    told = [
        {"type": kind, "status": status, "reason": reason, "message": "at 12:01"}
        for kind, status, reason in conditions
    ]
    return kept_node({"metadata": {"name": "n1"}, "spec": spec, "status": {"conditions": told}})


@pytest.mark.parametrize("taint", [each for each in LEAVES if "=" not in each])
def test_a_drained_node_leaves(taint: str) -> None:
    notice = notice_of(node(taint), NodeSignals(), POD)
    assert notice is not None
    assert notice.reason == labels.NODE_LEAVES


@pytest.mark.parametrize("taint", ENDS)
def test_a_spot_notice_ends_it_whatever_else_is_said(taint: str) -> None:
    notice = notice_of(node(LEAVES[0], taint, cordoned=True), NodeSignals(), POD)
    assert notice == (labels.NODE_ENDS, f"Node n1 has the taint {taint}.")


def test_a_cordon_is_seen_before_its_taint_and_told_alike() -> None:
    early = notice_of(node(cordoned=True), NodeSignals(), POD)
    late = notice_of(node("node.kubernetes.io/unschedulable", cordoned=True), NodeSignals(), POD)
    assert early == late == (labels.NODE_LEAVES, "Node n1 is cordoned.")


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (("GPUMissing", "True", "GPUMissing"), "GPUMissing=True (GPUMissing)"),
        (("XIDErrors", "True", ""), "XIDErrors=True"),
        (
            ("AcceleratedHardwareReady", "False", "NvidiaXID79Error"),
            "AcceleratedHardwareReady=False (NvidiaXID79Error)",
        ),
    ],
)
def test_a_gpus_fault_is_a_condition(condition: tuple[str, str, str], told: str) -> None:
    notice = notice_of(node(conditions=(condition,)), NodeSignals(), POD)
    assert notice == (labels.NODE_LEAVES, f"Node n1 has the condition {told}.")


@pytest.mark.parametrize(
    "healthy",
    [
        node(),
        node("nvidia.com/gpu", "node.kubernetes.io/not-ready"),
        node(conditions=(("Ready", "True", "KubeletReady"), ("GPUMissing", "False", ""))),
        node(conditions=(("AcceleratedHardwareReady", "True", ""),)),
    ],
)
def test_other_nodes_stay(healthy: dict[str, Any]) -> None:
    assert notice_of(healthy, NodeSignals(), POD) is None


def test_signs_are_the_users() -> None:
    signals = NodeSignals(frozenset({"example.com/sold"}), frozenset({"Burning=Unknown"}))
    assert notice_of(node(cordoned=True), signals, POD) is None
    sold = notice_of(node("example.com/sold"), signals, POD)
    assert sold == (labels.NODE_LEAVES, "Node n1 has the taint example.com/sold.")
    burning = node("example.com/sold", conditions=(("Burning", "Unknown", ""),))
    assert notice_of(burning, signals, POD) == (
        labels.NODE_ENDS,
        "Node n1 has the condition Burning=Unknown.",
    )


def test_a_pod_that_tolerates_a_taint_stays() -> None:
    pod = {**POD, "spec": {"tolerations": [{"key": ENDS[0], "operator": "Exists"}]}}
    assert notice_of(node(ENDS[0]), NodeSignals(), pod) is None
    assert notice_of(node(ENDS[0], cordoned=True), NodeSignals(), pod) is not None


def test_what_is_kept_of_a_node_is_small() -> None:
    kept = node(*LEAVES[:2], conditions=(("Ready", "True", "x" * 5000),))
    assert len(str(kept)) < 1000
    assert "podCIDR" not in kept["spec"]
