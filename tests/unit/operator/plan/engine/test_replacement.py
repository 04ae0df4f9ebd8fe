"""Pods that leave are replaced before they go, by a Deployment's controller like Kubernetes'."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.operator_world import NOW, World, condition_of, manifest_of, unschedulable
from support.operator_world import pod as make_pod

from kvasir.kube.objects import annotation
from kvasir.resource import labels
from kvasir_operator.departures.pod_notice import DELETION_COST, FIRST_TO_GO
from kvasir_operator.plan.engine.replacement import GAVE_UP, PATIENCE

SPEC = {"model": {"uri": "builtin://kvasir-tiny"}}


def leaves(pod: dict[str, Any], reason: str = labels.NODE_LEAVES) -> dict[str, Any]:
    """The pod as the operator has marked it."""
    made = copy.deepcopy(pod)
    told = {"type": labels.LEAVING, "status": "True", "reason": reason}
    made["status"]["conditions"].append({**told, "message": "Node n1 is cordoned."})
    made["metadata"]["annotations"] = {DELETION_COST: FIRST_TO_GO}
    return made


def serving(world: World, name: str) -> dict[str, Any]:
    return make_pod(name, world.revision, up=True, routed=True)


def replicas_of(made: Any) -> int:
    return int(manifest_of(made, "Deployment")["spec"]["replicas"])


@pytest.fixture
def lone() -> World:
    """A model with one replica, which serves."""
    world = World({**SPEC, "replicas": 1})
    world.step()
    return world.pods(serving(world, "a"))


def test_a_lone_replica_stays_until_its_replacement_serves(lone: World) -> None:
    old = leaves(serving(lone, "a"))
    assert replicas_of(lone.pods(old).step()) == 2
    starting = make_pod("b", lone.revision)
    made = lone.pods(old, starting).step()
    assert replicas_of(made) == 2
    assert condition_of(made, "Ready")[0] == "True"
    made = lone.pods(old, serving(lone, "b")).step()
    assert replicas_of(made) == 1, "the old one goes by its deletion cost"
    made = lone.pods(serving(lone, "b")).step()
    assert replicas_of(made) == 1
    assert condition_of(made, "Ready")[0] == "True"


def test_the_status_names_pod_node_and_reason(lone: World) -> None:
    made = lone.pods(leaves(serving(lone, "a"))).step()
    told = ("True", "NodeLeaves", "Pod a on n1: Node n1 is cordoned.")
    assert condition_of(made, "PodsLeaving") == told
    assert condition_of(made, "Degraded")[0] == "False"
    made = lone.pods(serving(lone, "a")).step()
    assert "PodsLeaving" not in {each["type"] for each in made.status["conditions"]}


def test_of_many_the_most_urgent_come_first_and_some_are_counted() -> None:
    world = World({**SPEC, "replicas": 5})
    world.step()
    pods = [leaves(serving(world, f"p{number}")) for number in range(4)]
    pods.append(leaves(serving(world, "spot"), labels.NODE_ENDS))
    _, reason, message = condition_of(world.pods(*pods).step(), "PodsLeaving")
    assert reason == "NodeEnds"
    assert message.startswith("Pod spot on n1")
    assert message.endswith("And 2 more.")


def test_without_a_surge_nothing_is_replaced(lone: World) -> None:
    lone.edit({"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}})
    lone.step()
    assert replicas_of(lone.pods(leaves(serving(lone, "a"))).step()) == 1


def test_a_pod_that_would_not_be_the_first_to_go_is_not_replaced(lone: World) -> None:
    old = leaves(serving(lone, "a"))
    old["metadata"]["annotations"] = {DELETION_COST: "10"}
    assert replicas_of(lone.pods(old).step()) == 1


def test_a_volume_of_one_node_lets_nothing_start_elsewhere(lone: World) -> None:
    claim = {"metadata": {"name": "m"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    lone.see(claim=claim)
    assert replicas_of(lone.pods(leaves(serving(lone, "a"))).step()) == 1


def test_a_rollout_replaces_them_anyway(lone: World) -> None:
    old = leaves(make_pod("old", "another", up=True, routed=True))
    assert replicas_of(lone.pods(old, make_pod("new", lone.revision)).step()) == 1


def test_a_node_that_comes_back_needs_no_replacement(lone: World) -> None:
    old = serving(lone, "a")
    lone.pods(leaves(old)).step()
    assert replicas_of(lone.pods(old, make_pod("b", lone.revision)).step()) == 1


def test_one_that_finds_no_node_is_given_up_once(lone: World) -> None:
    old = leaves(serving(lone, "a"))
    lone.pods(old).step()
    waits = make_pod("b", lone.revision, status=unschedulable("0/2 nodes are available.", NOW))
    made = lone.pods(old, waits).later(60).step()
    assert replicas_of(made) == 2
    assert made.requeue is not None
    assert made.requeue <= PATIENCE - 60
    made = lone.later(PATIENCE).step()
    assert replicas_of(made) == 1, "else its budget would hold up the node's drain for ever"
    assert annotation(manifest_of(made, "Deployment"), GAVE_UP)
    assert replicas_of(lone.pods(old).step()) == 1, "not again for the same pod"
    made = lone.pods(serving(lone, "c")).step()
    assert not annotation(manifest_of(made, "Deployment"), GAVE_UP)


def test_a_replacement_that_leaves_itself_is_the_last(lone: World) -> None:
    """As on a node whose condition keeps no pod away: the next one would come there, too."""
    old = leaves(serving(lone, "a"))
    lone.pods(old).step()
    assert replicas_of(lone.pods(old, leaves(make_pod("b", lone.revision))).step()) == 1
    assert replicas_of(lone.pods(old).step()) == 1


class Cluster(RuleBasedStateMachine):
    """A controller that keeps as many pods as the Deployment says, and removes in Kubernetes'
    order, nodes that leave and come back, evictions, an operator that looks now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.pods: dict[str, bool] = {}
        """True for those that serve."""
        self.ending: set[str] = set()
        self.world = World(
            {**SPEC, "replicas": self.wanted, "rolloutStrategy": {"maxSurge": "50%"}}
        )
        self.world.step()
        self.controller()
        for name in self.pods:
            self.pods[name] = True

    wanted = 4
    surge = 2

    @property
    def desired(self) -> int:
        assert self.world.observed.deployment is not None
        return int(self.world.observed.deployment["spec"]["replicas"])

    def serving(self) -> int:
        return sum(self.pods.values())

    def objects(self) -> list[dict[str, Any]]:
        found = []
        for name, up in self.pods.items():
            it = make_pod(name, self.world.revision, up=up, routed=up)
            found.append(leaves(it) if name in self.ending else it)
        return found

    @rule()
    def operator_looks(self) -> None:
        self.world.pods(*self.objects()).step()

    @rule()
    def controller(self) -> None:
        before = self.serving()
        while len(self.pods) < self.desired:
            self.made += 1
            self.pods[f"p{self.made:04}"] = False
        order = sorted(self.pods, key=lambda it: (self.pods[it], it not in self.ending, it))
        for name in order[: max(len(self.pods) - self.desired, 0)]:
            del self.pods[name]
            self.ending.discard(name)
        assert self.serving() >= min(before, self.wanted), "a pod that serves was given up early"

    @precondition(lambda self: not all(self.pods.values()))
    @rule(data=st.data())
    def pod_starts(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(it for it, up in self.pods.items() if not up)))
        self.pods[name] = True

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def node_leaves_or_stays(self, data: st.DataObject) -> None:
        self.ending ^= {data.draw(st.sampled_from(sorted(self.pods)))}

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def eviction(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.ending)))
        del self.pods[name]
        self.ending.discard(name)

    @invariant()
    def never_more_than_the_strategy_allows(self) -> None:
        assert self.wanted <= self.desired <= self.wanted + self.surge

    def teardown(self) -> None:
        """With room in the cluster all that leaves is replaced in the end."""
        for _ in range(4 * self.wanted):
            self.operator_looks()
            self.controller()
            for name in self.pods:
                self.pods[name] = True
        assert not self.ending
        assert len(self.pods) == self.serving() == self.wanted


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
