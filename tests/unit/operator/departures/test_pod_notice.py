"""The condition of one pod, through all that may happen to its node and to itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvasir.kube.objects import annotation, condition, holds
from kvasir.resource import labels
from kvasir_operator.departures.node_signals import Notice, kept_node
from kvasir_operator.departures.pod_notice import (
    DELETION_COST,
    FIRST_TO_GO,
    annotations_for,
    change_of,
)
from kvasir_operator.departures.signs import NodeSignals

SIGNALS = NodeSignals()
SPOT = "aws-node-termination-handler/spot-itn"


def pod(**annotations: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p", "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"conditions": []}}


def node(*taints: str, cordoned: bool = False) -> dict[str, Any]:
    told = {"taints": [{"key": each} for each in taints], "unschedulable": cordoned}
    return kept_node({"metadata": {"name": "n"}, "spec": told})


def written(it: dict[str, Any], notice: Notice) -> dict[str, Any]:
    """The pod as the API server has it after the write."""
    made = copy.deepcopy(it)
    told = dict(zip(("reason", "message"), notice, strict=True))
    made["status"]["conditions"] = [
        {"type": labels.LEAVING, "status": str(notice.leaves), **told},
    ]
    for name, value in annotations_for(it, notice).items():
        if value is None:
            made["metadata"]["annotations"].pop(name, None)
        else:
            made["metadata"]["annotations"][name] = value
    return made


def settled(
    it: dict[str, Any],
    its_node: dict[str, Any] | None,
    signals: NodeSignals | None = SIGNALS,
) -> dict[str, Any]:
    """The pod after all that is written; a second write would never end."""
    notice = change_of(it, its_node, signals)
    if notice is None:
        return it
    made = written(it, notice)
    assert change_of(made, its_node, signals) is None
    return made


def test_nothing_is_written_while_nothing_is_wrong() -> None:
    assert change_of(pod(), node(), SIGNALS) is None
    assert change_of(pod(), None, SIGNALS) is None


def test_a_taint_that_goes_again_is_taken_back() -> None:
    told = settled(pod(), node(cordoned=True))
    assert condition(told, labels.LEAVING)["reason"] == labels.NODE_LEAVES
    assert annotation(told, DELETION_COST) == FIRST_TO_GO
    back = settled(told, node())
    assert condition(back, labels.LEAVING) == {
        "type": labels.LEAVING,
        "status": "False",
        "reason": labels.STAYS,
        "message": "It is over: Node n is cordoned.",
    }
    assert annotation(back, DELETION_COST) == ""
    again = settled(back, node(SPOT))
    assert condition(again, labels.LEAVING)["reason"] == labels.NODE_ENDS


def test_a_node_that_is_gone_changes_nothing() -> None:
    told = settled(pod(), node(SPOT))
    assert change_of(told, None, SIGNALS) is None


def test_what_was_said_of_nodes_is_taken_back_where_they_are_not_watched_any_more() -> None:
    told = settled(pod(), node(SPOT))
    back = settled(told, None, None)
    found = condition(back, labels.LEAVING)
    assert (found["status"], found["reason"]) == ("False", labels.STAYS)
    assert found["message"] == "Nodes are not watched any more."
    assert annotation(back, DELETION_COST) == ""
    assert change_of(pod(), None, None) is None


def test_a_pods_own_word_holds_and_ends_also_where_nodes_are_not_watched() -> None:
    told = settled(pod(**{labels.LEAVE: "XID 79"}), None, None)
    assert condition(told, labels.LEAVING)["reason"] == labels.POD_ASKS
    del told["metadata"]["annotations"][labels.LEAVE]
    back = settled(told, None, None)
    assert condition(back, labels.LEAVING)["message"] == "It is over: XID 79."


def test_a_pod_that_is_deleted_meanwhile_is_left_alone() -> None:
    it = pod()
    it["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert change_of(it, node(SPOT), SIGNALS) is None


def test_a_pod_may_say_so_itself_also_where_nodes_are_not_watched() -> None:
    told = settled(pod(**{labels.LEAVE: "XID 79:\n GPU has fallen off the bus."}), None)
    found = condition(told, labels.LEAVING)
    assert found["reason"] == labels.POD_ASKS
    assert found["message"] == "XID 79: GPU has fallen off the bus."
    del told["metadata"]["annotations"][labels.LEAVE]
    assert not holds(settled(told, None), labels.LEAVING)


def test_a_long_word_is_cut() -> None:
    told = settled(pod(**{labels.LEAVE: "x" * 100_000}), None)
    assert len(condition(told, labels.LEAVING)["message"]) < 300


@pytest.mark.parametrize("cost", ["5", "-7"])
def test_a_users_deletion_cost_stays(cost: str) -> None:
    told = settled(pod(**{DELETION_COST: cost}), node(SPOT))
    assert annotation(told, DELETION_COST) == cost
    assert annotation(settled(told, node()), DELETION_COST) == cost


class PodAndNode(RuleBasedStateMachine):
    """Whatever happens in whichever order: a write settles, and says what is so."""

    def __init__(self) -> None:
        super().__init__()
        self.pod = pod()
        self.node: dict[str, Any] | None = node()
        self.signals: NodeSignals | None = SIGNALS

    @rule(taints=st.sets(st.sampled_from([SPOT, "x"])), cordoned=st.booleans())
    def node_changes(self, taints: set[str], cordoned: bool) -> None:
        self.node = node(*sorted(taints), cordoned=cordoned)

    @rule(are=st.booleans())
    def nodes_are_watched(self, are: bool) -> None:
        self.signals = SIGNALS if are else None

    @rule()
    def node_goes(self) -> None:
        self.node = None

    @rule(says=st.sampled_from(["", "XID 79", "ECC"]))
    def pod_says(self, says: str) -> None:
        self.pod["metadata"]["annotations"].pop(labels.LEAVE, None)
        if says:
            self.pod["metadata"]["annotations"][labels.LEAVE] = says

    @rule()
    def operator_looks(self) -> None:
        self.pod = settled(self.pod, self.node if self.signals else None, self.signals)
        found = condition(self.pod, labels.LEAVING)
        asks = annotation(self.pod, labels.LEAVE)
        if asks:
            assert (found["status"], found["message"]) == ("True", f"{asks}.")
        elif self.signals is None:
            assert found.get("status") != "True"
        elif self.node is not None:
            tainted = any(each["key"] == SPOT for each in self.node["spec"]["taints"])
            leaves = tainted or self.node["spec"]["unschedulable"]
            assert (found.get("status") == "True") is leaves
            assert not tainted or found["reason"] == labels.NODE_ENDS

    @invariant()
    def only_who_leaves_goes_first(self) -> None:
        goes_first = annotation(self.pod, DELETION_COST) == FIRST_TO_GO
        assert goes_first is holds(self.pod, labels.LEAVING)


TestPodAndNode = PodAndNode.TestCase
TestPodAndNode.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
