"""The adapters that engines hold, as the status tells, and what restarts engines."""

from __future__ import annotations

from typing import Any

import pytest
from support.operators.downloads import claim

from kvasir.resource import labels
from kvasir.resource.lora.lora_held import HeldAdapters

IMAGE = {"image": "own:1"}
SPEC = {
    "model": {"uri": "builtin://kvasir-tiny"},
    "engine": IMAGE,
    "adapters": [
        {"name": "sql", "uri": "file:///a/sql"},
        {"name": "chat", "uri": "file:///a/chat"},
    ],
    "replicas": 2,
}
BOTH = {"sql": "/a/sql", "chat": "/a/chat"}


def holding(
    pod: Any, held: dict[str, str], refused: dict[str, str] | None = None, run: str = ""
) -> Any:
    run = run or f"{pod['metadata']['uid']}/0"
    text = HeldAdapters(run, held, refused or {}).written()
    pod["metadata"]["annotations"] = {labels.ADAPTERS: text}
    return pod


@pytest.fixture
def up(world: Any, make: Any) -> Any:
    """up(*annotated): a world with pods that are up."""
    it = world(SPEC)
    it.step()

    def make_it(*changes: Any) -> Any:
        pods = [make.pod(f"p{n}", it.revision, up=True, routed=True) for n in range(len(changes))]
        return it.pods(*(change(pod) for change, pod in zip(changes, pods, strict=True))).plan()

    return make_it


def test_all_engines_hold_all(up: Any, make: Any) -> None:
    made = up(lambda it: holding(it, BOTH), lambda it: holding(it, BOTH))
    assert made.adapters == BOTH
    assert made.status["adapters"] == [
        {"name": "sql", "readyReplicas": 2},
        {"name": "chat", "readyReplicas": 2},
    ]
    assert make.condition(made, "AdaptersLoaded")[:2] == ("True", "Loaded")


def test_a_run_that_was_not_asked_yet_holds_none(up: Any, make: Any) -> None:
    made = up(lambda it: holding(it, BOTH), lambda it: holding(it, BOTH, run="uid-p1/7"))
    assert made.status["adapters"][0] == {
        "name": "sql",
        "readyReplicas": 1,
        "message": "1 of 2 engines hold it.",
    }
    assert make.condition(made, "AdaptersLoaded")[:2] == ("False", "Loading")
    assert make.condition(made, "Degraded")[0] == "False"
    assert make.condition(made, "Ready")[0] == "True", "nothing waits for adapters"


def test_an_engine_that_refuses_is_told_of_in_its_words(up: Any, make: Any) -> None:
    refused = {"chat": "LoRA rank 64 is greater than max_lora_rank 16 (status 400)"}
    made = up(lambda it: holding(it, {"sql": "/a/sql"}, refused), lambda it: holding(it, BOTH))
    status, reason, message = make.condition(made, "AdaptersLoaded")
    assert (status, reason) == ("False", "AdapterRefused")
    assert message == f"Adapter chat: p0: {refused['chat']}"
    assert make.condition(made, "Degraded")[1] == "AdapterRefused"
    assert make.condition(made, "Ready")[0] == "True"


def test_a_name_of_another_deployment_is_not_asked_for(up: Any, world: Any, make: Any) -> None:
    it = world(SPEC).see(names_lost={"chat": "other/m"})
    made = it.plan()
    assert made.adapters == {"sql": "/a/sql"}
    assert make.condition(made, "AdaptersLoaded")[1] == "NameConflict"
    assert "other/m" in make.condition(made, "AdaptersLoaded")[2]


@pytest.mark.parametrize("kind", ["vllm", "sglang", "kvasir"])
def test_only_the_field_itself_restarts_engines(world: Any, make: Any, kind: str) -> None:
    engine = {**IMAGE, "type": kind}
    base = {"model": {"uri": "pvc://c/m"}, "engine": engine}
    it = world(base).see(claim=claim())

    def template() -> Any:
        return make.manifest(it.plan(), "Deployment")["spec"]["template"]

    without = template()
    it.edit({"adapters": []})
    empty = template()
    it.edit({"adapters": [{"name": "sql", "uri": "pvc://c/sql"}]})
    assert template() == empty
    (container,) = empty["spec"]["containers"]
    assert (empty == without) is (kind == "kvasir")
    assert ("--enable-lora" in container["args"]) is (kind != "kvasir")
    names = {each["name"]: each.get("value") for each in container["env"]}
    assert (names.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "True") is (kind == "vllm")


def test_what_the_user_says_of_room_replaces_ours(world: Any, make: Any) -> None:
    args = ["--enable-lora", "--max-loras=8", "--max-lora-rank", "64"]
    engine = {**IMAGE, "type": "vllm", "args": args}
    spec = {"model": {"uri": "pvc://c/m"}, "engine": engine, "adapters": []}
    made = world(spec).see(claim=claim()).plan()
    (container,) = make.manifest(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["args"].count("--enable-lora") == 1
    assert "--max-cpu-loras" not in container["args"]


def test_a_paused_one_asks_nothing_and_one_without_the_field_either(world: Any) -> None:
    assert world({**SPEC, "paused": True}).plan().adapters is None
    assert world().plan().adapters is None
    assert "adapters" not in world().plan().status


def test_without_engines_nothing_is_wrong(world: Any, make: Any) -> None:
    made = world({**SPEC, "replicas": 0}).plan()
    assert make.condition(made, "AdaptersLoaded")[:2] == ("True", "ScaledToZero")
