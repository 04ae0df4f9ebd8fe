"""Processes of engines that are not Kvasir's, and what the router is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.cli.local.engine_process import EnginePorts, EngineProcess
from kvasir.resource import LLMDeployment

PORTS = EnginePorts(1, 2, 3, 4)
ENV = {"PATH": "/bin", "KVASIR_FLEET_SECRET": "s", "KVASIR_API_KEY": "k"}


def process(engine: dict[str, Any], **spec: Any) -> EngineProcess:
    content = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "m"},
        "spec": {"model": {"uri": "hf://a/b@v1", "name": "n"}, "engine": engine, **spec},
    }
    return EngineProcess(LLMDeployment.model_validate(content), 0, PORTS)


def test_vllm_is_given_a_hub_id_and_a_revision() -> None:
    it = process({"type": "vllm"})
    child = it.child(("kvasir",), ENV)
    assert child.command == (
        *("vllm", "serve", "a/b", "--host", "127.0.0.1", "--port", "1"),
        *("--served-model-name", "n", "--revision", "v1", "--shutdown-timeout", "45"),
    )
    assert child.ready_url == "http://127.0.0.1:1/health"
    assert it.entry() == {"id": "m-0", "url": "http://127.0.0.1:1", "engine": "vllm"}


def test_a_directory_is_given_as_it_is() -> None:
    child = process({"type": "sglang"}, model={"uri": "file:///a%20b"}).child((), ENV)
    assert child.command[3:5] == ("--model-path", "/a b")


def test_events_are_published_where_the_router_has_a_tokenizer() -> None:
    it = process({"type": "vllm"}, router={"tokenizer": "a/b"})
    config = it.child((), ENV).command[-1]
    assert '"endpoint":"tcp://127.0.0.1:3","replay_endpoint":"tcp://127.0.0.1:4"' in config
    entry = it.entry()
    assert (entry["kv_events"], entry["kv_replay"]) == ("tcp://127.0.0.1:3", "tcp://127.0.0.1:4")


def test_a_custom_command_is_expanded() -> None:
    it = process(
        {
            "type": "custom",
            "command": ["serve", "$(KVASIR_MODEL)", "$(HOW)", "$(PATH)"],
            "args": ["--listen=$(KVASIR_HOST):$(KVASIR_PORT)"],
            "env": [{"name": "HOW", "value": "well"}],
            "probes": {"readiness": {"path": "/up"}},
            "metrics": {"running": "a:b", "kvUsage": "c"},
        },
    )
    child = it.child((), ENV)
    assert child.command == ("serve", "a/b", "well", "$(PATH)", "--listen=127.0.0.1:1")
    assert child.ready_url == "http://127.0.0.1:1/up"
    assert child.env["KVASIR_SERVED_NAME"] == "n"
    assert it.entry() == {
        "id": "m-0",
        "url": "http://127.0.0.1:1",
        "engine": "openai",
        "ready_path": "/up",
        "metrics": {"path": "/metrics", "running": "a:b", "kv_usage": "c"},
    }


@pytest.mark.parametrize("kind", ["vllm", "sglang", "custom"])
def test_engines_of_others_are_told_no_secret(kind: str) -> None:
    env = process({"type": kind, "image": "x:1", "command": ["x"] if kind == "custom" else []})
    assert not {"KVASIR_FLEET_SECRET", "KVASIR_API_KEY"} & env.child((), ENV).env.keys()
    assert process({}).child(("kvasir",), ENV).env == ENV
