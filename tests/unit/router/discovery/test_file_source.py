"""The discovery file: what is accepted, what is refused, and reading it again."""

from pathlib import Path

import pytest
import yaml

from kvasir.resource.engines.traits import CustomAPI, MetricNames
from kvasir_router.discovery.file_source import MAX_FILE_BYTES, read_snapshot
from kvasir_router.discovery.specs import (
    CanarySpec,
    DiscoveryError,
    EngineKind,
    ModelSpec,
    PolicySpec,
    ReplicaSpec,
)
from kvasir_router.policy.registry import check_policy

GOOD = """
models:
  - name: kvasir-tiny
    aliases: [tiny]
    replicas:
      - {id: r0, url: "http://127.0.0.1:8000"}
      - {id: r1, url: "http://engine-1:9000/", draining: true}
      - {id: r2, url: "http://[::1]:8002"}
      - {id: r3, url: "https://engine-3"}
  - name: empty
  - name: tuned
    policy: kv_aware
    policy_options: {miss_weight: 2}
    adapters: [sql]
    hold: 300
    tokenizer: org/tuned
    replicas:
      - id: r0
        url: "http://10.0.0.1:8000"
        grpc_port: 8001
        kv_events: "tcp://10.0.0.1:5557"
        kv_replay: "tcp://[fd00::1]:5558"
      - {id: r1, url: "http://10.0.0.2:8000", engine: vllm, kv_events: "tcp://v:5557"}
canaries:
  - name: chat
    split: {kvasir-tiny: 95, tuned: 5.5}
"""


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(GOOD)
    assert read_snapshot(path, check_policy) == (
        ModelSpec(
            "kvasir-tiny",
            ("tiny",),
            (
                ReplicaSpec("r0", "127.0.0.1", 8000),
                ReplicaSpec("r1", "engine-1", 9000, draining=True),
                ReplicaSpec("r2", "::1", 8002),
                ReplicaSpec("r3", "engine-3", 443, tls=True),
            ),
        ),
        ModelSpec("empty"),
        ModelSpec(
            "tuned",
            (),
            (
                ReplicaSpec(
                    "r0",
                    "10.0.0.1",
                    8000,
                    grpc_port=8001,
                    kv_events="tcp://10.0.0.1:5557",
                    kv_replay="tcp://[fd00::1]:5558",
                ),
                ReplicaSpec(
                    "r1", "10.0.0.2", 8000, engine=EngineKind.VLLM, kv_events="tcp://v:5557"
                ),
            ),
            PolicySpec("kv_aware", {"miss_weight": 2}),
            ("sql",),
            300,
            "org/tuned",
        ),
        CanarySpec("chat", (("kvasir-tiny", 95), ("tuned", 5.5))),
    )


def test_an_engine_of_which_only_the_api_is_known_says_how_it_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        one_replica("engine: openai, ready_path: /up, metrics: {running: 'a:b', waiting: c}")
    )
    [model] = read_snapshot(path, check_policy)
    assert isinstance(model, ModelSpec)
    names = MetricNames(("a:b",), ("c",))
    assert model.replicas[0].custom == CustomAPI("/up", "/metrics", names)
    path.write_text(one_replica("engine: openai, metrics: {running: r, path: /m}"))
    [model] = read_snapshot(path, check_policy)
    assert isinstance(model, ModelSpec)
    assert model.replicas[0].custom == CustomAPI("/v1/models", "/m", MetricNames(("r",)))


def one_replica(fields: str) -> str:
    return f"models: [{{name: m, replicas: [{{id: r, url: 'http://a:1', {fields}}}]}}]"


def one_model(fields: str) -> str:
    return f"models: [{{name: m, replicas: [{{id: r, url: 'http://a:1'}}], {fields}}}]"


def one_canary(split: str) -> str:
    return f"models: [{{name: m}}]\ncanaries: [{{name: c, split: {split}}}]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [", ["not YAML"]),
        ("", ["`models`"]),
        ("[]", ["`models`"]),
        ("models: []\nextra: 1", ["extra is not a known field; known are models, canaries"]),
        (
            "models: [{name: m, replica: []}]",
            ["models[0].replica is not a known field", "did you mean replicas?"],
        ),
        ("models: [{name: ''}]", ["models[0].name must have at least 1 character, not ''"]),
        ("models: [{name: m}, {name: m}]", ["'m'", "twice"]),
        ("models: [{name: m, aliases: [a]}, {name: a}]", ["'a'", "twice"]),
        ("models: [{name: m, aliases: [m]}]", ["'m'", "twice"]),
        ("models: [{name: m, replicas: [{id: r}]}]", ["models[0].replicas[0].url is missing"]),
        (
            "models: [{name: m, replicas: [{id: r, url: http://a:1}, {id: r, url: http://b:1}]}]",
            ["'r'", "twice"],
        ),
        ("models: [{name: m, replicas: [{id: r, url: 'ftp://a:1'}]}]", ["http(s)://HOST[:PORT]"]),
        (
            "models: [{name: m, replicas: [{id: r, url: 'http://a/../x'}]}]",
            ["'http://a/../x' must"],
        ),
        ("models: [{name: m, replicas: [{id: r, url: 'http://u:p@a/v1'}]}]", ["without user"]),
        (
            "models: [{name: m, replicas: [{id: r, url: 'http://a/v1', engine: kvasir}]}]",
            ["engine kvasir has its API at the root"],
        ),
        (one_replica("key_env: A, key_file: /b"), ["key_env and key_file are given"]),
        (one_replica("ca_file: /b"), ["ca_file is of no use without TLS"]),
        (one_replica("key_env: KVASIR_TEST_NO_KEY"), ["variable KVASIR_TEST_NO_KEY holds no key"]),
        (one_replica("key_file: /no/such"), ["cannot read file /no/such"]),
        (one_model("fallbacks: [m, x]"), ["model 'm' falls back to 'x', which is no model"]),
        (one_model("fallbacks: [a, b, c, d, e, f, g, h, i]"), ["fallbacks"]),
        (one_model("fallback_after: -1"), ["fallback_after"]),
        (
            "models: [{name: m, replicas: [{id: r, url: 'http://a:x'}]}]",
            ["'http://a:x' must be of the form http(s)://HOST[:PORT]"],
        ),
        (
            "models: [{name: m, replicas: [{id: r, url: 'http://a:99999'}]}]",
            ["'http://a:99999' must be of the form http(s)://HOST[:PORT]"],
        ),
        ("models: [{name: m, replicas: [{id: r, url: 'http://[a'}]}]", ["http(s)://HOST[:PORT]"]),
        ("models: 3", ["models must be a list, not 3"]),
        ("models: [{name: 3}]", ["models[0].name must be a valid string, not 3"]),
        ("models: [m]", ["models[0] must be a mapping, not 'm'"]),
        (
            one_replica("engine: vllm, ready_path: /up"),
            ["replicas[0]: ready_path is only for engine openai; leave it out with vllm"],
        ),
        (
            one_replica("metrics: {running: a}"),
            ["replicas[0]: metrics is only for engine openai; leave it out with kvasir"],
        ),
        (one_replica("engine: openai, ready_path: up"), ["replicas[0].ready_path must match"]),
        (
            one_replica("engine: openai, metrics: {waiting: a}"),
            ["replicas[0].metrics.running is missing"],
        ),
        (one_replica("draining: 5"), ["replicas[0].draining must be a valid boolean, not 5"]),
        ("models: [{name: m, adapters: [m]}]", ["'m'", "twice"]),
        (
            "models: [{name: m, adapters: [b], replicas: "
            "[{id: r, url: 'http://h', engine: vllm, adapters: [a]}]}]",
            ["replica 'r' holds the adapter 'a', which model 'm' does not list; add it to"],
        ),
        (
            "models: [{name: m, adapters: [b], replicas: [{id: r, url: 'http://h/v1', model: x}]}]",
            ["replica 'r' is asked for 'x' whatever a client names", "give it adapters: []"],
        ),
        ("models: [{name: m, policy: magic}]", ["models[0]", "'magic'", "least_load"]),
        (one_model("policy_options: {header: x}"), ["models[0]", "without policy; name it too"]),
        (
            one_model("policy: session, policy_options: {heder: x}"),
            ["models[0]: policy session: heder is not", "did you mean header?"],
        ),
        (
            one_replica("engine: tgi"),
            ["replicas[0].engine must be", "'kvasir-open', 'vllm'", "not 'tgi'"],
        ),
        (
            one_replica("grpc_port: 0"),
            ["replicas[0].grpc_port must be greater than or equal to 1, not 0"],
        ),
        (one_replica("engine: vllm, grpc_port: 1"), ["grpc_port", "leave it out with vllm"]),
        (one_replica("kv_events: 'tcp://*:5557'"), ["kv_events", "tcp://HOST:PORT"]),
        (one_replica("kv_events: 'tcp://a:x'"), ["kv_events", "tcp://HOST:PORT"]),
        (one_replica("kv_events: 'ipc:///tmp/x'"), ["kv_events", "tcp://HOST:PORT"]),
        (one_replica("kv_events: 'tcp://a:1', kv_replay: 'tcp://a'"), ["kv_replay", "tcp://HOST"]),
        (one_replica("kv_replay: 'tcp://a:1'"), ["kv_replay", "kv_events"]),
        (one_model("tokenizer: ./tok"), ["tokenizer of model 'm'", "kv_events"]),
        (one_model("tokenizer: 'ftp://x'"), ["models[0]", "scheme 'ftp'"]),
        (one_model("tokenizer: ''"), ["models[0].tokenizer", "at least 1"]),
        (one_canary("{}"), ["canaries[0].split", "at least 1"]),
        (one_canary("{m: 0}"), ["canary 'c'", "weight"]),
        (one_canary("{m: -1}"), ["canaries[0].split.m must be greater than or equal to 0, not -1"]),
        (one_canary("{m: .nan}"), ["canaries[0].split.m"]),
        (one_canary("{x: 1}"), ["canary 'c'", "'x'", "no model"]),
        ("models: [{name: m}]\ncanaries: [{name: m, split: {m: 1}}]", ["'m'", "twice"]),
        ("models: !!python/object/apply:os.system [ls]", ["not YAML"]),
        ("models: [{name: 2026-11-31}]", ["not YAML", "day is out of range"]),
        ("models: " + "[" * 5000 + "]" * 5000, ["nested too deeply", "64"]),
        ("models: []" + " " * MAX_FILE_BYTES, ["larger"]),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(DiscoveryError) as refused:
        read_snapshot(path, check_policy)
    message = str(refused.value)
    assert str(path) in message
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="No such file"):
        read_snapshot(tmp_path / "none.yaml", check_policy)


async def test_a_change_is_taken_up(
    start_replica, start_router, model_entry, write_config, client, eventually
) -> None:
    a, b = await start_replica(), await start_replica()
    router = await start_router([model_entry("m", a)])
    write_config(router.config, [model_entry("m", a), model_entry("n", b, aliases=["o"])])
    await eventually(lambda: router.server.fleet.find("o") is not None)
    await eventually(lambda: router.server.fleet.models["n"].ready)
    assert (await client.post(f"{router.url}/score", json={"model": "o"})).status_code == 200
    assert len(b.requests) == 1
    assert await router.metric("discovery_reads_total", result="ok") == 2


async def test_a_bad_change_leaves_the_last_good_state(
    start_replica, start_router, model_entry, write_config, client, eventually
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    router.config.write_text("models: [{name: m, oops: 1}]")
    await eventually(lambda: not router.server.metrics.discovery_good)
    assert (await client.post(f"{router.url}/score", json={"model": "m"})).status_code == 200
    assert await router.metric("discovery_good") == 0
    assert await router.metric("discovery_reads_total", result="refused") == 1
    write_config(router.config, [model_entry("n", replica)])
    await eventually(lambda: router.server.metrics.discovery_good)
    await eventually(lambda: router.server.fleet.find("m") is None)


async def test_a_snapshot_that_cannot_be_applied_does_not_end_the_watch(
    start_replica, start_router, model_entry, write_config, eventually
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    fleet = router.server.fleet
    came = fleet.came

    def raises(model, replica) -> None:
        came(model, replica)
        raise ZeroDivisionError

    fleet.came = raises
    write_config(router.config, [model_entry("n", replica)])
    await eventually(lambda: not router.server.metrics.discovery_good)
    fleet.came = came
    write_config(router.config, [model_entry("o", replica)])
    await eventually(lambda: router.server.metrics.discovery_good)
    assert list(fleet.models) == ["o"]


async def test_a_replica_that_is_taken_out_ends_its_streams(
    stream_until, start_router, model_entry, write_config, post, eventually
) -> None:
    replica, go_on = await stream_until()
    router = await start_router([model_entry("m", replica)])
    reader, writer = await router.connect()
    writer.write(post(b'{"model": "m"}'))
    await reader.readuntil(b"data: 1\n\n")
    write_config(router.config, [])
    await eventually(lambda: not router.server.fleet.models)
    go_on.set()
    assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"data: 2\n\n\r\n0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("said", [{"engine": "vllm"}, {"engine": "kvasir"}, {"grpc_port": 8001}])
def test_with_a_fleet_secret_each_replica_says_its_engine(tmp_path, said) -> None:
    """Else one forgotten line would send the secret to somebody else's server."""
    path = tmp_path / "fleet.yaml"
    replica = {"id": "r0", "url": "http://127.0.0.1:1"}
    for fields, refused in (({}, True), (said, False)):
        path.write_text(yaml.safe_dump({"models": [{"name": "m", "replicas": [replica | fields]}]}))
        assert read_snapshot(path, check_policy)
        if refused:
            with pytest.raises(DiscoveryError, match=r"'r0' of model 'm' .* engine: kvasir,"):
                read_snapshot(path, check_policy, has_secret=True)
        else:
            assert read_snapshot(path, check_policy, has_secret=True)
