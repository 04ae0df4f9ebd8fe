from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvasir.cli.local.gpu_assignment import GPUShortageError
from kvasir.cli.local.local_fleet import Fleet, plan_fleet
from kvasir.resource import LLMDeployment


def deployment(
    name: str, /, replicas: int = 1, gpus: int = 0, device: str = "auto", **model: Any
) -> LLMDeployment:
    return LLMDeployment.model_validate(
        {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": name},
            "spec": {
                "model": {"uri": "hf://a/b", **model},
                "replicas": replicas,
                "engine": {"config": {"device": device}},
                "resources": {"limits": {"nvidia.com/gpu": gpus}},
                "parallelism": {"tensor": gpus or 1},
                "lifecycle": {"drainSeconds": 7 * replicas},
            },
        }
    )


def plan(tmp_path: Path, *deployments: LLMDeployment, **options: Any) -> Fleet:
    settings = {"host": "127.0.0.1", "port": 9, "runtime_dir": tmp_path, "environ": {}}
    return plan_fleet(deployments, **{**settings, **options})


def test_the_discovery_file_lists_every_replica_under_its_model(tmp_path: Path) -> None:
    fleet = plan(
        tmp_path, deployment("a", 2, aliases=["x"]), deployment("b", 0), deployment("c", name="m")
    )
    models = json.loads((tmp_path / "fleet.json").read_bytes())["models"]
    replicas = {replica["id"]: replica for model in models for replica in model["replicas"]}
    assert [
        (model["name"], model["aliases"], [replica["id"] for replica in model["replicas"]])
        for model in models
    ] == [("a", ["x"], ["a-0", "a-1"]), ("b", [], []), ("m", [], ["c-0"])]
    for engine in fleet.engines:
        replica = replicas[engine.name]
        flags = dict(zip(engine.command[:-1], engine.command[1:], strict=True))
        assert replica["url"] == f"http://127.0.0.1:{flags['--port']}"
        assert str(replica["grpc_port"]) == flags["--grpc-port"]
        assert replica["kv_events"] == flags["--kv-events-endpoint"]
        assert replica["kv_replay"] == flags["--kv-events-replay-endpoint"]
    addresses = [str(value) for replica in replicas.values() for value in replica.values()]
    assert len(set(addresses)) == len(addresses)
    assert fleet.models == ["a", "b", "m"]
    assert fleet.router.grace > 14  # the longest drain of its engines
    assert fleet.router.command[-2:] == ("--drain-timeout", "14")


@pytest.mark.parametrize("given", [None, "", "redis://127.0.0.1"])
def test_the_router_keeps_responses_while_it_runs(tmp_path: Path, given: str | None) -> None:
    environ = {} if given is None else {"KVASIR_RESPONSE_STORE": given}
    fleet = plan(tmp_path, environ=environ)
    expected = f"sqlite:///{tmp_path}/responses.db" if given is None else given
    assert fleet.router.env["KVASIR_RESPONSE_STORE"] == expected


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("10.1.2.3", "http://10.1.2.3:9"),
    ],
)
def test_the_url_can_be_reached(tmp_path: Path, host: str, url: str) -> None:
    fleet = plan(tmp_path, deployment("a"), host=host)
    assert fleet.url == url
    assert fleet.router.ready_url == url + "/ready"


def test_each_replica_has_its_own_gpus(tmp_path: Path) -> None:
    fleet = plan(
        tmp_path,
        deployment("a", 2, gpus=2),
        deployment("b"),
        environ={"CUDA_VISIBLE_DEVICES": "0, 2,GPU-x,5,6"},
    )
    assert [e.env["CUDA_VISIBLE_DEVICES"] for e in fleet.engines] == ["0,2", "GPU-x,5", ""]


def test_a_simulated_replica_needs_none_on_one_machine(tmp_path: Path) -> None:
    asking = deployment("a", gpus=2, device="sim"), deployment("b", gpus=1)
    fleet = plan(tmp_path, *asking, environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert [e.env["CUDA_VISIBLE_DEVICES"] for e in fleet.engines] == ["", "0"]
    assert fleet.engines[0].command.count("--tensor-parallel-size") == 1


def test_too_few_gpus(tmp_path: Path) -> None:
    with pytest.raises(GPUShortageError, match="asks for 4 GPUs in all but this machine has 1;"):
        plan(tmp_path, deployment("a", 2, gpus=2), environ={"CUDA_VISIBLE_DEVICES": "0"})


def test_what_the_user_set_stays(tmp_path: Path) -> None:
    environ = {"OMP_NUM_THREADS": "3", "KVASIR_LOG_FORMAT": "json", "KVASIR_FLEET_SECRET": "old"}
    (engine,) = plan(tmp_path, deployment("a"), environ=environ).engines
    assert engine.env["OMP_NUM_THREADS"] == "3"
    assert engine.env["KVASIR_LOG_FORMAT"] == "json"
    assert engine.env["KVASIR_FLEET_SECRET"] != "old"
