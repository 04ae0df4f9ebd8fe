from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvasir_operator import command, run
from kvasir_operator.departures.signs import ENDS, LEAVES, NodeSignals
from kvasir_operator.flag_values import ending_signs, leaving_signs, optional_kinds
from kvasir_operator.settings import Images, OperatorSettings


def invoke(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(command.app, arguments, env={"COLUMNS": "300", **environment})
    return result.exit_code, " ".join(result.output.split())


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[OperatorSettings] = []

    async def note(settings: OperatorSettings) -> None:
        seen.append(settings)

    monkeypatch.setattr(run, "run", note)
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    flags = ["--namespace", "kvasir", "--watch-namespace", "a", "--watch-namespace", "b"]
    flags += ["--kserve-namespace", "k", "--kserve-namespace", "l"]
    flags += ["--image-cpu", "x", "--fleet-secret-file", str(secret), "--no-node-reads"]
    flags += ["--resource-profile", "NVIDIA-L40S=48Gi", "--resource-profile", "default=1Gi"]
    flags += ["--download-env", "HF_ENDPOINT=https://hub/?a=b", "--download-env", "NO_PROXY="]
    flags += ["--pod-security", '{"runAsNonRoot": true, "fsGroup": 7}', "--download-metadata"]
    flags += ["--optional-kind", "scaledobjects", "--node-drain", "--node-ends", "none"]
    flags += ["--node-leaves", "example.com/sold", "--node-leaves", "GPUMissing=True"]
    flags += ["--class-settings", '{"defaults": {"hubEndpoint": "https://hub.example"}}']
    assert invoke(*flags)[0] == 0
    (found,) = seen
    assert found.fleet_secret.now.accepted == ("s3cret",)
    secret.write_text("new\ns3cret\n")
    assert found.fleet_secret.look()
    assert found.fleet_secret.now.accepted == ("new", "s3cret")
    assert seen == [
        OperatorSettings(
            namespace="kvasir",
            watch_namespaces=("a", "b"),
            kserve_namespaces=("k", "l"),
            router_namespace="kvasir",
            images=Images(cpu="x"),
            fleet_secret=found.fleet_secret,
            node_reads=False,
            node_drain=True,
            node_signals=NodeSignals(
                frozenset({"example.com/sold", "GPUMissing=True"}), frozenset()
            ),
            optional_kinds=("scaledobjects",),
            pod_security={"fsGroup": 7},
            class_settings={"defaults": {"hubEndpoint": "https://hub.example"}},
            download_metadata=True,
            resource_profiles={"NVIDIA-L40S": 48 << 30, "default": 1 << 30},
            download_env={"HF_ENDPOINT": "https://hub/?a=b", "NO_PROXY": ""},
        )
    ]


def test_bounds_of_routers_that_exclude_each_other() -> None:
    code, text = invoke("--router-min-replicas", "9")
    assert code == 2
    assert "--router-min-replicas 9 is above --router-max-replicas 8" in text


@pytest.mark.parametrize("bad", ["", "a b", "a/b/c", "x=", "Ready=yes", "=True", "a" * 400])
@pytest.mark.parametrize("flag", ["--node-leaves", "--node-ends"])
def test_what_is_no_sign_of_a_node(flag: str, bad: str) -> None:
    code, text = invoke(flag, bad)
    assert code == 2
    assert f"{flag} {bad[:100]!r} is neither a taint's key" in text.replace("│ ", "")


def test_signs_of_nodes() -> None:
    assert leaving_signs(None) == frozenset(LEAVES)
    assert ending_signs([]) == frozenset(ENDS)
    # All that is there by default may be given again, as the chart does
    assert leaving_signs(list(LEAVES)) == frozenset(LEAVES)
    assert ending_signs([*ENDS, "example.com/off"]) == {*ENDS, "example.com/off"}


def test_no_optional_kind_at_all() -> None:
    assert optional_kinds(["none"]) == ()
    assert optional_kinds(None) == OperatorSettings().optional_kinds


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--resource-profile", "48Gi"], "is not of the form PRODUCT=MEMORY"),
        (["--resource-profile", "a=much"], "'much' is not an amount of memory"),
        (["--download-env", "HF_ENDPOINT"], "is not of the form NAME=VALUE"),
        (["--download-env", "a b=c"], "is not of the form NAME=VALUE"),
        (["--pod-security", "{"], "--pod-security is no JSON"),
        (["--pod-security", "[]"], "--pod-security is no JSON object"),
        (["--pod-security", '{"runAsUser": 0}'], "--pod-security asks for root"),
        (["--pod-security", '{"runAsNonRoot": false}'], "--pod-security asks for root"),
        (["--optional-kind", "hpa"], "--optional-kind 'hpa' is none of horizontalpodautoscalers"),
        (["--fleet-secret-file", "/nowhere"], "/nowhere cannot be read"),
        (["--fleet-secret-file", "/dev/null"], "no regular file"),
    ],
)
def test_flags_that_cannot_be(flags: list[str], sentence: str) -> None:
    status, output = invoke(*flags)
    assert status == 2
    assert sentence in output


def test_without_a_cluster(tmp_path: Path) -> None:
    absent = str(tmp_path / "config")
    status, output = invoke(
        "--host", "127.0.0.1", "--metrics-port", "0", KUBECONFIG=absent, KVASIR_LOG_FORMAT="json"
    )
    assert status == 1
    assert f"kvasir operator: {absent} does not exist; set KUBECONFIG" in output


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "--class-settings is no JSON"),
        ('{"defaults": {"mirror": 1}}', "--class-settings: defaults.mirror is not a known field"),
        ('{"defaults": {"profile": "a"}}', "defaults.profile is none of profiles"),
    ],
)
def test_settings_of_a_class_that_no_api_server_would_take(text: str, told: str) -> None:
    code, output = invoke("--class-settings", text)
    assert code == 2
    assert told in output
