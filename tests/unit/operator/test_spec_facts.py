"""What is read of specs and pods alone."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource import LLMDeployment, engine_command, labels
from kvasir.resource.lora.lora_held import HeldAdapters
from kvasir_operator.spec_facts import held_by_pod, names_served_by, secrets_of


def pod(*args: str, phase: str = "Running", container: str = "engine") -> dict[str, Any]:
    sidecar = {"name": "sidecar", "args": ["--served-model-name", "no"]}
    own = {"name": container, "command": ["kvasir"], "args": list(args)}
    spec, status = {"containers": [sidecar, own]}, {"phase": phase}
    return {"metadata": {"uid": "u"}, "spec": spec, "status": status}


def test_an_engines_pod_serves_the_names_of_its_command_line() -> None:
    content = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "m"},
        "spec": {"model": {"uri": "org/m", "name": "Org/Chat", "aliases": ["a", "b"]}},
    }
    command = engine_command(LLMDeployment.model_validate(content), host="h", port=1)
    assert names_served_by(pod(*command[1:])) == {"Org/Chat", "a", "b"}
    assert names_served_by(pod("--served-model-name", "last")) == {"last"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_one_that_has_ended_serves_none(phase: str) -> None:
    assert names_served_by(pod("--served-model-name", "x", phase=phase)) == set()


def test_others_containers_serve_none() -> None:
    assert names_served_by(pod("--served-model-name", "x", container="other")) == set()
    assert names_served_by(pod("--port", "1")) == set()


def test_a_custom_engine_serves_the_name_that_it_was_told() -> None:
    one = pod("--port", "1")
    one["spec"]["containers"][1]["env"] = [
        {"name": "KVASIR_SERVED_NAME", "value": "m"},
        {"name": "KVASIR_MODEL", "value": "/models/x"},
        {"name": "SECRET", "valueFrom": {}},
    ]
    assert names_served_by(one) == {"m"}


def test_the_secrets_of_servers_of_others_are_those_of_their_keys() -> None:
    key = {"secretRef": {"name": "s", "key": "k"}}
    urls = [{"url": "https://a.example/v1", "key": key}, {"url": "https://b.example/v1"}]
    content = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "m"},
        "spec": {"model": {}, "external": {"urls": urls}},
    }
    assert secrets_of(LLMDeployment.model_validate(content).spec) == {"s"}


def test_the_adapters_of_a_pod_are_parsed_once_for_each_run_and_word() -> None:
    def told(held: dict[str, str], restarts: int = 0) -> dict[str, Any]:
        status = {"name": "engine", "restartCount": restarts}
        made = pod()
        made["metadata"]["annotations"] = {labels.ADAPTERS: HeldAdapters("u/0", held).written()}
        return {**made, "status": {"containerStatuses": [status]}}

    first = held_by_pod(told({"sql": "/sql"}))
    assert first is not None
    assert first is held_by_pod(told({"sql": "/sql"}))
    assert held_by_pod(told({"sql": "/sql"}, restarts=1)) is None
    assert held_by_pod(told({})) == HeldAdapters("u/0")
