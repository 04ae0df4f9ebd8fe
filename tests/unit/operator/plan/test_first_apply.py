"""What is made for a new LLMDeployment, and how its status goes from nothing to Ready."""

from __future__ import annotations

from typing import Any

import pytest


def test_the_built_in_model_needs_no_volume_and_no_job(world: Any, make: Any) -> None:
    made = world().plan()
    kinds = [each["kind"] for each in made.manifests]
    assert kinds == [
        "ServiceAccount",
        "Service",
        "PodDisruptionBudget",
        "Secret",
        "NetworkPolicy",
        "Deployment",
    ]
    for manifest in made.manifests:
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "ns"
        assert metadata["ownerReferences"][0]["uid"] == "u1"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "kvasir-operator"
        shared = manifest["kind"] == "Secret"
        assert metadata["labels"].get("kvasir.dev/deployment") == (None if shared else "m")
    assert make.condition(made, "ModelCached")[:2] == ("True", "NotNeeded")
    assert make.condition(made, "Ready")[:2] == ("False", "Starting")
    assert made.status["phase"] == "Pending"
    assert made.status["selector"] == "kvasir.dev/component=engine,kvasir.dev/deployment=m"


def test_the_engines_pod(world: Any, make: Any) -> None:
    spec = {
        "model": {"uri": "builtin://kvasir-tiny", "aliases": ["t"]},
        "engine": {"args": ["--no-overlap"], "env": [{"name": "A", "value": "b"}]},
        "lifecycle": {"drainSeconds": 100, "preStopSeconds": 7, "startupSeconds": 60},
        "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "500m"}},
        "podTemplate": {
            "nodeSelector": {"disk": "fast"},
            "tolerations": [
                {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}
            ],
            "labels": {"team": "a"},
            "priorityClassName": "high",
            "imagePullSecrets": [{"name": "own"}],
        },
    }
    deployment = make.manifest(world(spec).plan(), "Deployment")["spec"]
    template = deployment["template"]
    pod = template["spec"]
    (engine,) = pod["containers"]
    assert engine["image"] == "cpu:1"
    assert engine["args"] == [
        *("serve", "builtin://kvasir-tiny", "--host", "0.0.0.0", "--port", "8000"),
        *("--served-model-name", "m", "t", "--drain-timeout", "100", "--no-overlap"),
        *("--grpc-port", "8001", "--kv-events-endpoint", "tcp://*:5557"),
        *("--kv-events-replay-endpoint", "tcp://*:5558"),
        *("--fleet-secret-file", "/etc/kvasir/fleet/secret"),
    ]
    assert engine["resources"] == {"limits": {"memory": "2Gi"}, "requests": {"cpu": "500m"}}
    assert pod["tolerations"] == spec["podTemplate"]["tolerations"]
    assert (
        engine["startupProbe"]["failureThreshold"] * engine["startupProbe"]["periodSeconds"] == 60
    )
    assert engine["lifecycle"] == {"preStop": {"sleep": {"seconds": 7}}}
    assert pod["terminationGracePeriodSeconds"] > 107
    assert pod["readinessGates"] == [{"conditionType": "kvasir.dev/routed"}]
    assert pod["imagePullSecrets"] == [{"name": "pull"}, {"name": "own"}]
    assert pod["nodeSelector"] == {"disk": "fast"}
    assert pod["priorityClassName"] == "high"
    assert template["metadata"]["labels"]["team"] == "a"
    assert {"name": "A", "value": "b"} in engine["env"]
    mounts = {each["mountPath"]: each for each in engine["volumeMounts"]}
    assert set(mounts) == {"/cache", "/tmp", "/dev/shm", "/etc/kvasir/fleet"}
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_an_engine_with_gpus_never_serves_without_one(world: Any, make: Any, device: str) -> None:
    spec = {
        "model": {"uri": "builtin://kvasir-tiny"},
        "engine": {"config": {"device": device}},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    pod = make.manifest(world(spec).plan(), "Deployment")["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    assert args.count("--device") == 1
    assert args[args.index("--device") + 1] == "cuda"


@pytest.mark.parametrize(
    ("spec", "resources"),
    [
        ({}, {"requests": {"cpu": "1"}}),
        ({"engine": {"config": {"device": "sim"}}}, {"requests": {"cpu": "250m"}}),
        ({"resources": {"limits": {"cpu": "4"}}}, {"limits": {"cpu": "4"}}),
    ],
)
def test_no_engine_is_without_a_share_of_the_cpu(
    spec: Any, resources: Any, world: Any, make: Any
) -> None:
    made = world({"model": {"uri": "builtin://kvasir-tiny"}, **spec}).plan()
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == resources


@pytest.mark.parametrize(
    ("limits", "tensor", "size"),
    [
        ({}, 1, "256Mi"),
        ({"nvidia.com/gpu": 2}, 2, "2048Mi"),
        ({"nvidia.com/gpu": 8, "memory": "64Gi"}, 8, "8192Mi"),
        ({"nvidia.com/gpu": 8, "memory": "6Gi"}, 8, "3072Mi"),
        ({"memory": "128Mi"}, 1, "64Mi"),
    ],
)
def test_shared_memory_has_room_for_every_rank_within_the_pods_limit(
    limits: dict[str, Any], tensor: int, size: str, world: Any, make: Any
) -> None:
    spec = {"resources": {"limits": limits}, "parallelism": {"tensor": tensor}}
    made = world({"model": {"uri": "builtin://kvasir-tiny"}, **spec}).plan()
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "shm")
    assert mount["mountPath"] == "/dev/shm"


def test_a_simulated_engine_takes_the_gpus_it_asks_for(world: Any, make: Any) -> None:
    spec = {
        "model": {"uri": "builtin://kvasir-tiny"},
        "engine": {"config": {"device": "sim"}},
        "resources": {"limits": {"nvidia.com/gpu": 2}},
        "parallelism": {"tensor": 2},
    }
    made = world(spec).plan()
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    args = engine["args"]
    assert args[args.index("--tensor-parallel-size") + 1] == "2"
    assert args[args.index("--device") + 1] == "sim"
    assert make.condition(made, "Fits")[1:] == ("NotNeeded", "It computes nothing on its GPUs.")


def test_pods_meet_the_restricted_standard(world: Any, make: Any) -> None:
    pod = make.manifest(world().plan(), "Deployment")["spec"]["template"]["spec"]
    security = pod["containers"][0]["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False


def test_without_a_fleet_secret_there_is_none(world: Any, make: Any) -> None:
    settings = make.SETTINGS.__class__(images=make.SETTINGS.images)
    made = world(settings=settings).plan()
    assert "Secret" not in [each["kind"] for each in made.manifests]
    assert "fleet" not in str(make.manifest(made, "Deployment"))


def test_from_nothing_to_ready(world: Any, make: Any) -> None:
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 2})
    one.step()
    one.pods(make.pod("a", one.revision), make.pod("b", one.revision))
    assert one.step().status["phase"] == "Starting"
    one.pods(make.pod("a", one.revision, up=True), make.pod("b", one.revision, up=True))
    made = one.step()
    assert make.condition(made, "WorkloadReady")[:2] == ("True", "Available")
    assert make.condition(made, "RouterReady") == (
        "False",
        "NotRouted",
        "Routers serve 0 of 2 engines; the others have not been taken yet.",
    )
    both = [make.pod(name, one.revision, up=True, routed=True) for name in "ab"]
    made = one.pods(*both).step()
    assert make.condition(made, "Ready") == (
        "True",
        "Serving",
        "2 engines of the newest revision serve.",
    )
    assert made.status["phase"] == "Ready"
    assert made.status["url"] == "http://kvasir-router.kvasir:8080"
    assert made.status["startup"] == {
        "scheduleSeconds": 2,
        "pullSeconds": 3,
        "loadSeconds": 7,
        "routeSeconds": 1,
    }


def test_the_same_again_changes_nothing_but_later(world: Any) -> None:
    one = world()
    first = one.step()
    assert one.later(3600).step() == first


def test_without_a_router_ready_is_not_claimed(world: Any, make: Any) -> None:
    one = world().see(ready_routers=0)
    one.step()
    made = one.pods(make.pod("a", one.revision, up=True)).step()
    assert make.condition(made, "RouterReady")[:2] == ("Unknown", "NoRouter")
    assert make.condition(made, "Ready")[0] == "False"


@pytest.mark.parametrize(
    ("spec", "seen", "reason", "words"),
    [
        (
            {"model": {"uri": "builtin://kvasir-tiny", "name": "x"}},
            {"names_lost": {"x": "other/older"}},
            "NameConflict",
            "belongs to LLMDeployment other/older, which claimed it first; give spec.model.name",
        ),
        (
            {
                "model": {"uri": "builtin://kvasir-tiny"},
                "engine": {
                    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
                },
            },
            {"secrets": {"s": None}},
            "SecretMissing",
            "Secret 's' does not exist in namespace ns; create it.",
        ),
        ({"model": {"uri": "file:///m"}}, {}, "Accepted", ""),
        (
            {
                "model": {"uri": "builtin://kvasir-tiny", "voice": "x"},
                "engine": {"env": [{"name": "A", "value": "x", "when": "now"}]},
            },
            {},
            "UnknownFields",
            "does not know spec.engine.env[0].when, spec.model.voice; they are kept",
        ),
        ({"model": {"uri": "ftp://x"}}, {}, "InvalidSpec", "spec.model.uri: model URI 'ftp://x'"),
    ],
)
def test_what_is_not_accepted_starts_no_engine(
    world: Any, make: Any, spec: Any, seen: Any, reason: str, words: str
) -> None:
    made = world(spec).see(**seen).plan()
    status, found, message = make.condition(made, "Accepted")
    assert found == reason
    assert words in message
    started = "Deployment" in [each["kind"] for each in made.manifests]
    assert started == (status == "True")
    if status == "False":
        assert made.status["phase"] == "Failed"
        assert make.condition(made, "Ready")[1] == reason


def test_no_image_for_the_device(world: Any, make: Any) -> None:
    settings = make.SETTINGS.__class__(images=make.SETTINGS.images.__class__(cpu="x"))
    spec = {"model": {"uri": "builtin://kvasir-tiny"}, "engine": {"config": {"device": "sim"}}}
    made = world(spec, settings).plan()
    assert make.condition(made, "Accepted")[1] == "NoImage"
    assert "--image-sim" in make.condition(made, "Accepted")[2]
    made = world(make.merged(spec, {"engine": {"image": "own:1"}}), settings).plan()
    assert make.condition(made, "Accepted")[0] == "True"


def test_a_lost_alias_degrades_but_serves(world: Any, make: Any) -> None:
    spec = {"model": {"uri": "builtin://kvasir-tiny", "aliases": ["x"]}}
    one = world(spec).see(names_lost={"x": "ns/old"})
    one.step()
    made = one.pods(make.pod("a", one.revision, up=True, routed=True)).step()
    assert make.condition(made, "Ready")[0] == "True"
    assert make.condition(made, "Degraded")[:2] == ("True", "NameConflict")


def test_paused_changes_nothing_but_the_status(world: Any, make: Any) -> None:
    made = world({"model": {"uri": "builtin://kvasir-tiny"}, "paused": True}).plan()
    assert not made.manifests
    assert not made.deletions
    assert made.scale is None
    assert make.condition(made, "Accepted")[:2] == ("True", "Paused")


def test_scaled_to_zero_is_idle(world: Any, make: Any) -> None:
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 0})
    one.step()
    made = one.step()
    assert made.status["phase"] == "Idle"
    for kind in ("Ready", "WorkloadReady"):
        assert make.condition(made, kind)[1] == "ScaledToZero"
    assert make.condition(made, "Ready")[0] == "False"
    assert make.condition(made, "WorkloadReady")[0] == "True"
    assert make.condition(made, "Degraded")[0] == "False"


def test_only_routers_and_named_namespaces_reach_engines(world: Any, make: Any) -> None:
    spec = {
        "model": {"uri": "builtin://kvasir-tiny"},
        "networkPolicy": {"allowedNamespaces": ["monitoring"]},
    }
    one = world(spec)
    rules = make.manifest(one.plan(), "NetworkPolicy")["spec"]["ingress"]
    routers, operator, others = rules
    assert [port["port"] for port in routers["ports"]] == [8000, 8001, 5557, 5558]
    assert routers["from"][0]["podSelector"]["matchLabels"] == {"kvasir.dev/component": "router"}
    assert operator["from"][0]["podSelector"]["matchLabels"] == {"kvasir.dev/component": "operator"}
    assert "monitoring" in str(others["from"])
    kinds = [each["kind"] for each in world({"model": {"uri": "hf://org/m"}}).plan().manifests]
    assert kinds.count("NetworkPolicy") == 2, "one for engines, one for downloads"
    made = one.edit({"networkPolicy": {"enabled": False}}).plan()
    assert "NetworkPolicy" in [each["kind"] for each in made.deletions]


def test_monitors_are_made_where_their_kinds_are(world: Any, make: Any) -> None:
    one = world().see(optional=frozenset({"podmonitors", "prometheusrules"}))
    made = one.plan()
    assert make.manifest(made, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    assert make.manifest(made, "PrometheusRule")["spec"]["groups"]
    made = one.edit({"monitoring": {"alerts": False}}).plan()
    assert "PrometheusRule" in [each["kind"] for each in made.deletions]
    assert "PodMonitor" not in [each["kind"] for each in made.deletions]


def test_a_class_that_nobody_serves_changes_nothing_and_is_told(world: Any, make: Any) -> None:
    made = world().see(unserved="spec.className is x, and no such class exists.").plan()
    status, reason, message = make.condition(made, "Accepted")
    assert (status, reason) == ("True", "NotServed")
    assert message.startswith("spec.className is x, and no such class exists. Until then class ")
    assert make.manifest(made, "Deployment")


def test_an_old_crd_is_told(world: Any, make: Any) -> None:
    made = world().see(crd_lacks=("spec.x",)).plan()
    assert make.condition(made, "Accepted")[:2] == ("True", "CRDOutdated")
    assert "spec.x" in make.condition(made, "Accepted")[2]
