"""Effects of edits, by the operator's own plan."""

from __future__ import annotations

from typing import Any

import pytest
from support.operator_world import BUILTIN, World, pod

from kvasir_operator.edits.edit_effect import EditEffect, effect_of

HUB = {"model": {"uri": "hf://a/b"}}


def serving(spec: dict[str, Any]) -> World:
    """A model that is served by as many pods as its spec asks for."""
    world = World({**BUILTIN, **spec})
    world.step()
    count = world.observed.resource["spec"].get("replicas", 1)
    return world.pods(*(pod(f"m-{i}", world.revision, up=True, routed=True) for i in range(count)))


def edited(world: World, *changes: dict[str, Any]) -> EditEffect:
    before = world.observed
    return effect_of(before, world.edit(*changes).observed, world.settings)


def test_an_edit_of_what_engines_run_restarts_all_of_them() -> None:
    effect = edited(serving({"replicas": 2}), {"engine": {"args": ["--no-overlap"]}})
    assert effect.restarts == 2
    assert effect.title == ("m in namespace ns: 2 pods restart (maxSurge 1, maxUnavailable 0)")
    assert effect.pod_changes == ("spec.containers[engine].args: + --no-overlap",)
    assert effect.objects == ()


@pytest.mark.parametrize(
    "change",
    [
        {"router": {"policy": "least_load"}},
        {"rolloutStrategy": {"maxSurge": 2}},
        {"rollout": {"paused": True}},
        {"disruption": {"maxUnavailable": 2}},
        {"model": {"aliases": ["other"]}, "router": {"holdSeconds": 5}, "engine": {}},
    ],
)
def test_restarts_are_those_of_the_revision(change: dict[str, Any]) -> None:
    """Aliases are on the command line; the rest is not."""
    effect = edited(serving({}), change)
    assert effect.restarts == (1 if "model" in change else 0)
    if not effect.restarts:
        assert effect.title == "m in namespace ns: no pod restarts"


def test_replicas_start_and_stop_without_a_restart() -> None:
    world = serving({"replicas": 2})
    assert edited(world, {"replicas": 5}).title.endswith("no pod restarts, 3 pods more start")
    assert edited(world, {"replicas": 1}).title.endswith("no pod restarts, 4 pods stop")


def test_a_budget_that_changes_is_named() -> None:
    effect = edited(serving({"replicas": 3}), {"disruption": {"maxUnavailable": 2}})
    assert effect.objects == ("change PodDisruptionBudget/m",)


def test_a_canary_comes_before_the_restart() -> None:
    steps = [{"weight": 10}, {"weight": 50}]
    world = serving({"replicas": 4, "rollout": {"canary": {"steps": steps}}})
    effect = edited(world, {"engine": {"args": ["--no-overlap"]}})
    assert effect.title == (
        "m in namespace ns: 4 pods restart once its canary is promoted: 1 pod more with 10 % of the"
        " requests first, 2 steps in all"
    )


def test_beside_a_canary_that_was_rolled_back() -> None:
    """The Deployment has the stable revision, the spec the canary's."""
    canary = {"canary": {"steps": [{"weight": 10}]}}
    world = serving({"rollout": canary})
    world.edit({"engine": {"args": ["--no-overlap"]}}).step()
    resource = world.observed.resource
    resource["metadata"]["annotations"] = {
        "kvasir.dev/rollout": f"abort {resource['status']['rollout']['id']}"
    }
    world.step()
    assert world.observed.resource["status"]["rollout"]["phase"] == "RolledBack"
    effect = edited(world, {"engine": {"config": {"seed": 1}}, "rollout": {"canary": None}})
    assert "compared with the canary that is RolledBack" in effect.title
    assert effect.objects == ()


def test_another_model_is_downloaded_first() -> None:
    world = serving({})
    effect = edited(world, HUB)
    assert effect.restarts == 1
    assert "when the model is downloaded" in effect.title
    assert "make PersistentVolumeClaim/m-models" in effect.objects


def test_values_of_variables_are_not_shown() -> None:
    world = serving({"engine": {"env": [{"name": "A", "value": "s3cret-1"}]}})
    effect = edited(world, {"engine": {"env": [{"name": "A", "value": "s3cret-2"}]}})
    assert effect.restarts == 1
    assert effect.pod_changes == ("a value that is not shown here",)
    assert "s3cret" not in str(effect.as_json())


def test_one_that_is_new() -> None:
    world = World({**BUILTIN, "replicas": 2})
    effect = effect_of(None, world.observed, world.settings)
    assert effect.title == "m in namespace ns is new: 2 pods start"
    assert "make Deployment/m" in effect.objects


def test_what_the_operator_does_not_carry_out() -> None:
    world = serving({})
    taken = world.see(names_lost={"other": "team/x"}).edit({"model": {"name": "other"}})
    effect = effect_of(world.observed, taken.observed, world.settings)
    assert effect.refused is not None
    assert "NameConflict" in effect.title
    assert effect.restarts == 0
    wrong = serving({})
    assert "spec.replicas" in str(edited(wrong, {"replicas": -1}).refused)
    paused = edited(serving({}), {"paused": True, "engine": {"args": ["--no-overlap"]}})
    assert "spec.paused is set" in str(paused.refused)
    assert paused.restarts == 0
