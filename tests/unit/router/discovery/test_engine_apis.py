"""How engines of each kind are asked, and pods of LLMDeployments with another engine."""

import json
from dataclasses import asdict, replace

import msgspec
import pytest

from kvasir.resource.engine_spec import Engine
from kvasir.resource.engines.engine_types import ENGINE_TYPES
from kvasir.resource.engines.traits import CustomAPI, MetricNames
from kvasir_router.discovery.engine_apis import is_safe, load_metrics, ready_path, traits_of
from kvasir_router.discovery.kubernetes_pods import read_engine
from kvasir_router.discovery.specs import EngineKind, ReplicaSpec

OWN = CustomAPI("/up", "/m", MetricNames(("a:b",), ("c",), ("d",), "e"))


def spec(kind: EngineKind, custom: CustomAPI | None = None) -> ReplicaSpec:
    return ReplicaSpec("r", "h", 1, engine=kind, custom=custom)


@pytest.mark.parametrize(
    ("kind", "path", "metrics"),
    [
        (EngineKind.KVASIR, "/ready", "kvasir_num_requests_running"),
        (EngineKind.KVASIR_OPEN, "/ready", "kvasir_num_requests_running"),
        (EngineKind.VLLM, "/health", "vllm:num_requests_running"),
        (EngineKind.SGLANG, "/health", "sglang:num_running_reqs"),
        (EngineKind.OPENAI, "/v1/models", None),
    ],
)
def test_each_kind(kind, path, metrics) -> None:
    assert ready_path(spec(kind)) == path
    found = load_metrics(spec(kind))
    assert (found and (found[0], found[1].running[0])) == (metrics and ("/metrics", metrics))


def test_a_custom_engine_is_asked_as_its_spec_says() -> None:
    it = spec(EngineKind.OPENAI, OWN)
    assert (ready_path(it), load_metrics(it)) == ("/up", ("/m", OWN.metrics))
    assert load_metrics(spec(EngineKind.OPENAI, CustomAPI("/up"))) is None


def test_only_kvasirs_engines_keep_the_contract() -> None:
    own = {kind for kind in EngineKind if traits_of(kind).contract}
    assert own == {EngineKind.KVASIR, EngineKind.KVASIR_OPEN}


@pytest.mark.parametrize(
    "unsafe",
    [
        replace(OWN, ready_path="/a HTTP/1.1\r\nx: y"),
        replace(OWN, ready_path="http://other/"),
        replace(OWN, metrics_path="/m?x=1"),
        replace(OWN, metrics_path="/" + "m" * 256),
        replace(OWN, metrics=MetricNames(("a b",))),
        replace(OWN, metrics=MetricNames(("",))),
        replace(OWN, metrics=MetricNames(tuple("abcde"))),
        replace(OWN, metrics=MetricNames(("a",), prompt_tokens="a\n")),
    ],
)
def test_what_is_no_path_or_name_goes_into_no_request(unsafe) -> None:
    assert is_safe(OWN)
    assert not is_safe(unsafe)


@pytest.fixture
def replica(pod):
    """replica(type, annotation): of an LLMDeployment's pod with that label and annotation."""

    def replica(kind=None, custom=None):
        it = pod("p1", port=9000)
        if kind is not None:
            it["metadata"]["labels"]["kvasir.dev/engine"] = kind
        if custom is not None:
            it["metadata"]["annotations"] = {"kvasir.dev/custom-api": custom}
        it["spec"]["containers"][0]["ports"] += [
            {"name": "grpc", "containerPort": 8001},
            {"name": "events", "containerPort": 5557},
        ]
        return read_engine(msgspec.Raw(msgspec.json.encode(it))).replica

    return replica


@pytest.mark.parametrize(
    ("kind", "engine", "grpc"),
    [
        (None, EngineKind.KVASIR, 8001),
        ("vllm", EngineKind.VLLM, None),
        ("sglang", EngineKind.SGLANG, None),
        ("custom", EngineKind.OPENAI, None),
        # Nobody gets the secret by asking for it, or by being of a newer version
        ("kvasir", EngineKind.OPENAI, None),
        ("tomorrows", EngineKind.OPENAI, None),
    ],
)
def test_a_pods_label_tells_its_engine(replica, kind, engine, grpc) -> None:
    found = replica(kind)
    assert (found.engine, found.grpc_port, found.port) == (engine, grpc, 9000)
    assert found.kv_events == "tcp://127.0.0.1:5557"


def test_every_type_has_a_kind(replica) -> None:
    kinds = {name: replica(None if name == "kvasir" else name).engine for name in ENGINE_TYPES}
    assert {name: traits_of(kind) for name, kind in kinds.items()} == dict(ENGINE_TYPES)


def test_a_custom_pod_tells_how_it_is_asked(replica) -> None:
    engine = Engine.model_validate(
        {
            "type": "custom",
            "image": "x:1",
            "probes": {"readiness": {"path": "/up"}},
            "metrics": {
                "path": "/m",
                "running": "a:b",
                "waiting": "c",
                "kvUsage": "d",
                "promptTokens": "e",
            },
        }
    )
    assert engine.custom_api == OWN
    assert replica("custom", json.dumps(asdict(engine.custom_api))).custom == OWN
    assert replica("vllm", json.dumps(asdict(engine.custom_api))).custom is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ready_path": 5}',
        json.dumps({"ready_path": "/a\r\nb"}),
        json.dumps({"ready_path": "/a", "more": "x" * 5000}),
    ],
)
def test_an_annotation_that_nobody_of_ours_wrote_says_nothing(replica, text) -> None:
    assert replica("custom", text).custom is None


def test_an_annotation_of_a_newer_version_is_understood(replica) -> None:
    text = json.dumps({"ready_path": "/a", "new": 1})
    assert replica("custom", text).custom == CustomAPI("/a")
