"""Pods, ports, probes and stops of engines that are not Kvasir's."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource import labels

VLLM = {"type": "vllm", "image": "vllm:1"}
SGLANG = {"type": "sglang", "image": "sglang:1"}
CUSTOM = {"type": "custom", "image": "own:1"}
PVC = {"uri": "pvc://claim/x"}
SEEN: dict[str, Any] = {
    "claim": {"metadata": {"name": "claim", "namespace": "ns", "uid": "c"}},
    "secrets": {"s": "1", "t": "1"},
}


@pytest.fixture
def deployment(world: Any, make: Any) -> Any:
    """deployment(engine, **spec): the manifest of its engines."""

    def build(engine: dict[str, Any], **spec: Any) -> dict[str, Any]:
        found: dict[str, Any] = make.manifest(
            world({"model": PVC, "engine": engine, **spec}).see(**SEEN).plan(), "Deployment"
        )
        return found

    return build


@pytest.fixture
def container(deployment: Any) -> Any:
    """container(engine, **spec): the engine's."""

    def build(engine: dict[str, Any], **spec: Any) -> dict[str, Any]:
        pod = deployment(engine, **spec)["spec"]["template"]["spec"]
        found: dict[str, Any] = pod["containers"][0]
        return found

    return build


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value") for each in container["env"]}


def test_vllm_is_given_the_directory_and_no_part_of_the_contract(container: Any) -> None:
    made = container({**VLLM, "args": ["--enforce-eager"]})
    assert made["command"] == ["vllm", "serve"]
    assert made["args"] == [
        *("/models/x", "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "m"),
        *("--shutdown-timeout", "45", "--enforce-eager"),
    ]
    assert {port["name"] for port in made["ports"]} == {"http"}
    assert "/etc/kvasir/fleet" not in {mount["mountPath"] for mount in made["volumeMounts"]}
    assert not {name for name in variables(made) if name.startswith("KVASIR_")}
    assert variables(made)["HOME"] == "/tmp"


def test_sglang_has_no_drain_flag_and_tells_its_metrics(container: Any) -> None:
    made = container({**SGLANG, "config": {"maxModelLen": 9}})
    assert made["command"] == ["python3", "-m", "sglang.launch_server"]
    assert made["args"][:2] == ["--model-path", "/models/x"]
    assert made["args"][-3:] == ["--context-length", "9", "--enable-metrics"]


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda it: str(it["type"]))
def test_kv_events_are_published_where_routers_can_use_them(
    world: Any, make: Any, container: Any, engine: dict[str, Any]
) -> None:
    made = container(engine, router={"tokenizer": "org/m"})
    config = made["args"][made["args"].index("--kv-events-config") + 1]
    assert '"endpoint":"tcp://*:5557"' in config
    assert '"replay_endpoint":"tcp://*:5558"' in config
    assert {port["name"] for port in made["ports"]} == {"http", "events", "replay"}
    assert "--kv-events-config" not in container(engine)["args"]


def test_a_custom_engine_is_told_by_variables(container: Any) -> None:
    made = container(
        {
            **CUSTOM,
            "args": ["--port", "$(KVASIR_PORT)"],
            "ports": {"http": 9000},
            "env": [{"name": "KVASIR_HOST", "value": "::"}],
        },
        resources={"limits": {"nvidia.com/gpu": 2}},
        parallelism={"tensor": 2},
    )
    assert "command" not in made
    assert made["args"] == ["--port", "$(KVASIR_PORT)"]
    told = variables(made)
    assert {name: value for name, value in told.items() if name.startswith("KVASIR_")} == {
        "KVASIR_MODEL": "/models/x",
        "KVASIR_SERVED_NAME": "m",
        "KVASIR_PORT": "9000",
        "KVASIR_TENSOR_PARALLEL_SIZE": "2",
        "KVASIR_HOST": "::",
    }
    assert made["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_the_pods_label_tells_the_type(deployment: Any) -> None:
    for engine in (VLLM, SGLANG, CUSTOM):
        metadata = deployment(engine)["spec"]["template"]["metadata"]
        assert metadata["labels"][labels.ENGINE_TYPE] == engine["type"]
        assert (labels.CUSTOM_API in metadata["annotations"]) is (engine is CUSTOM)
    own = deployment({})["spec"]["template"]["metadata"]
    assert labels.ENGINE_TYPE not in own["labels"]


@pytest.mark.parametrize(
    ("engine", "ready", "live"),
    [
        ({}, "/ready", "/live"),
        (VLLM, "/health", "/health"),
        (SGLANG, "/health", "/health"),
        (CUSTOM, "/health", None),
        ({**CUSTOM, "probes": {"readiness": {"path": "/r"}}}, "/r", None),
        ({**CUSTOM, "probes": {"liveness": {"path": "/l"}}}, "/health", "/l"),
    ],
)
def test_probes_ask_what_the_engine_answers(
    container: Any, engine: dict[str, Any], ready: str, live: str | None
) -> None:
    made = container(engine)
    assert made["startupProbe"]["httpGet"]["path"] == ready
    assert made["readinessProbe"]["httpGet"]["path"] == ready
    alive = made["livenessProbe"]
    assert alive.get("httpGet", {}).get("path") == live
    assert ("tcpSocket" in alive) is (live is None)


def test_probes_are_timed_as_the_spec_says(container: Any) -> None:
    engine = {
        "probes": {
            "startup": {"periodSeconds": 7, "timeoutSeconds": 3},
            "readiness": {"failureThreshold": 4},
            "liveness": {"periodSeconds": 20, "timeoutSeconds": 9, "failureThreshold": 6},
        }
    }
    made = container(engine, lifecycle={"startupSeconds": 100})

    def times(name: str) -> tuple[int, int, int]:
        probe = made[f"{name}Probe"]
        return probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]

    assert times("startup") == (7, 3, 14)
    assert times("readiness") == (2, 5, 4)
    assert times("liveness") == (20, 9, 6)


@pytest.mark.parametrize(
    ("engine", "sleep"),
    [({}, 5), (VLLM, 5), (SGLANG, 5), (CUSTOM, 35), ({**CUSTOM, "drainsOnSigterm": True}, 5)],
)
def test_one_that_sigterm_breaks_gets_it_when_its_drain_is_over(
    deployment: Any, engine: dict[str, Any], sleep: int
) -> None:
    pod = deployment(engine, lifecycle={"drainSeconds": 30})["spec"]["template"]["spec"]
    hook = pod["containers"][0]["lifecycle"]["preStop"]
    assert hook == {"sleep": {"seconds": sleep}}
    assert pod["terminationGracePeriodSeconds"] == 5 + 30 + 15


def test_env_comes_from_every_source(container: Any) -> None:
    sources = {
        "A": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
        "B": {"configMapKeyRef": {"name": "c", "key": "k"}},
        "C": {"fieldRef": {"fieldPath": "status.podIP"}},
        "D": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
    }
    env = [{"name": name, "valueFrom": source} for name, source in sources.items()]
    several = [{"prefix": "P_", "secretRef": {"name": "t", "optional": True}}]
    made = container({"env": env, "envFrom": several})
    assert made["env"][-4:] == env
    assert made["envFrom"] == several


def test_a_secret_that_may_be_missing_holds_nothing_up(world: Any, make: Any) -> None:
    def reason(optional: bool) -> str:
        several = [{"secretRef": {"name": "t", "optional": optional}}]
        one = world({"model": PVC, "engine": {"envFrom": several}}).see(secrets={"t": None})
        return str(make.condition(one.plan(), "Accepted")[1])

    assert (reason(True), reason(False)) == ("Accepted", "SecretMissing")


def test_engines_start_anew_when_a_secret_of_env_from_changes(world: Any, make: Any) -> None:
    several = [{"secretRef": {"name": "t"}}]
    one = world({"model": PVC, "engine": {"envFrom": several}}).see(**SEEN)
    templates = [
        make.manifest(one.see(secrets={"t": version}).plan(), "Deployment")["spec"]["template"]
        for version in ("1", "1", "2")
    ]
    assert templates[0] == templates[1] != templates[2]


def test_without_an_image_nothing_is_started(world: Any, make: Any) -> None:
    made = world({"model": PVC, "engine": {"type": "vllm"}}).plan()
    status, reason, message = make.condition(made, "Accepted")
    assert (status, reason) == ("False", "NoImage")
    assert message.startswith("engine.type vllm has no image of Kvasir's; set engine.image, or")
    assert message.endswith("defaults.images.vllm.")


def test_old_pods_are_reached_while_others_take_their_place(world: Any, make: Any) -> None:
    one = world({"model": PVC, "engine": CUSTOM | {"ports": {"http": 9000}}})
    old = make.pod()
    ports = [{"name": name, "containerPort": port} for name, port in labels.ENGINE_PORTS.items()]
    old["spec"]["containers"] = [{"name": "engine", "ports": ports}]
    [routers, operator] = make.manifest(one.pods(old).plan(), "NetworkPolicy")["spec"]["ingress"]
    assert [each["port"] for each in routers["ports"]] == [9000, 8000, 8001, 5557, 5558]
    assert [each["port"] for each in operator["ports"]] == [9000, 8000]


def test_the_namespace_gets_no_secret_that_its_engines_do_not_use(world: Any) -> None:
    def kinds(engine: dict[str, Any]) -> set[str]:
        made = world({"model": PVC, "engine": engine}).plan()
        return {each["kind"] for each in made.manifests}

    assert kinds({}) - kinds(VLLM) == {"Secret"}


@pytest.mark.parametrize(
    ("engine", "series"),
    [
        (VLLM, ("vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{")),
        (SGLANG, ("sglang:num_queue_reqs{", "sglang:token_usage{")),
        ({**CUSTOM, "metrics": {"running": "a", "kvUsage": "b:c"}}, ("avg(b:c{",)),
    ],
)
def test_alerts_are_about_the_engines_own_metrics(
    world: Any, make: Any, engine: dict[str, Any], series: tuple[str, ...]
) -> None:
    optional = frozenset({"podmonitors", "prometheusrules"})
    made = world({"model": PVC, "engine": engine}).see(optional=optional).plan()
    rules = make.manifest(made, "PrometheusRule")["spec"]["groups"][0]["rules"]
    told = " ".join(rule["expr"] for rule in rules)
    assert all(name in told for name in series)
    assert "kvasir_" not in told.replace("kvasir_dev_deployment", "")


def test_an_engine_that_tells_no_metrics_is_not_scraped(world: Any) -> None:
    optional = frozenset({"podmonitors", "prometheusrules"})
    made = world({"model": PVC, "engine": CUSTOM}).see(optional=optional).plan()
    assert {each["kind"] for each in made.deletions} >= {"PodMonitor", "PrometheusRule"}
