"""A bundle has what is needed and nothing of what was planted."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest
import yaml
from support import recorded_model as made

from kvasir.cli.kubectl.bundle import support_bundle
from kvasir.cli.kubectl.bundle.support_bundle import SupportBundle
from kvasir.cli.kubectl.cluster_session import ClusterError, ClusterSession

PLANTED = "pl4nted-V4lue"
KEY = "kv-Zm9vYmFyYmF6cXV4Zm9vYmFy"


async def bundled(
    session: ClusterSession, name: str | None = None, **options: bool
) -> tuple[dict[str, str], list[str]]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        bundle = SupportBundle(session, archive, **{"logs": True, "metrics": True, **options})
        await bundle.collect(name)
    content.seek(0)
    with tarfile.open(fileobj=content) as archive:
        members = archive.getmembers()
        assert {member.mode for member in members} == {0o600}
        files = {
            member.name.removeprefix("kvasir-support/"): archive.extractfile(member).read().decode()
            for member in members
        }
    return files, bundle.errors


@pytest.fixture
def planted(recorded: Any) -> Any:
    """Secrets in every place that a bundle reads."""
    [resource] = recorded.objects["llmdeployments"]
    resource["spec"]["engine"] = {
        "args": [f"--api-key={PLANTED}"],
        "env": [{"name": "FOO", "value": PLANTED}],
    }
    resource["status"]["conditions"][1]["message"] += f" token={PLANTED}"
    recorded.objects["secrets"] = [
        {"metadata": {"namespace": "ml", "name": "hub"}, "kind": "Secret", "data": {"t": PLANTED}}
    ]
    recorded.objects["configmaps"] = [{"metadata": {"name": "c"}, "data": {"a": PLANTED}}]
    recorded.objects["nodes"] = [{"metadata": {"name": "n1"}, "status": {}}]
    recorded.objects["events"] = [
        {
            "metadata": {"namespace": "ml"},
            "involvedObject": {"name": "qwen-a"},
            "reason": "Failed",
            "message": f"pull of https://u:{PLANTED}@registry failed",
        },
        {
            "metadata": {"namespace": "ml"},
            "involvedObject": {"name": "of-somebody-else"},
            "message": "not ours",
        },
    ]
    path = "/api/v1/namespaces/ml/pods/qwen-a"
    log = f"start\nReceived request 1: prompt: '{PLANTED}'\n{KEY}\nend"
    recorded.texts = {
        f"{path}/log?engine?previous": log,
        "/version": '{"gitVersion": "v1.35.0"}',
        "/api/v1/namespaces/ml/pods/qwen-b:8000/proxy/metrics": f'a{{key="{KEY}"}} 1\nb 2\n',
    }
    for pod in recorded.objects["pods"]:
        pod["spec"]["containers"][0]["env"] = [{"name": "PW", "value": PLANTED}]
    return recorded


async def test_nothing_planted_gets_in(session: ClusterSession, planted: Any) -> None:
    files, _ = await bundled(session)
    for name, text in files.items():
        assert PLANTED not in text, name
        assert KEY not in text, name
    assert files["logs/ml/qwen-a/engine.previous.log"].splitlines()[::3] == ["start", "end"]
    asked = {path for path, _ in planted.opened}
    assert not any("secrets" in path or "configmaps" in path for path in asked)
    assert "secrets" not in " ".join(files)


async def test_what_is_needed_is_there(session: ClusterSession, planted: Any) -> None:
    files, errors = await bundled(session)
    assert json.loads(files["about.json"])["kubernetes"] == {"gitVersion": "v1.35.0"}
    assert "ml/qwen  Starting" in files["status.txt"]
    assert "To do: Mend what the last lines" in files["status.txt"]
    [resource] = yaml.safe_load_all(files["resources/llmdeployments.yaml"])
    assert resource["metadata"]["name"] == "qwen"
    pods = [it["metadata"]["name"] for it in yaml.safe_load_all(files["resources/pods.yaml"])]
    assert pods == ["router-1", "qwen-a", "qwen-b"]
    assert "n1" in files["resources/nodes.yaml"]
    [event] = yaml.safe_load_all(files["events.yaml"])
    assert event["reason"] == "Failed"
    assert "b 2" in files["metrics/ml/qwen-b.txt"]
    assert "the metrics of ml/qwen-a" in files["errors.txt"]
    assert len(files["errors.txt"].splitlines()) == len(errors)


async def test_one_model_alone(session: ClusterSession, planted: Any) -> None:
    other = made.pod("other-1", {}, **{"kvasir.dev/deployment": "other"})
    planted.objects["pods"].append(other)
    files, _ = await bundled(session, "chat", logs=False, metrics=False)
    assert "other-1" not in files["resources/pods.yaml"]
    assert "router-1" in files["resources/pods.yaml"]
    assert not any(name.startswith(("logs/", "metrics/")) for name in files)


async def test_what_may_not_be_read_is_named(session: ClusterSession, planted: Any) -> None:
    planted.forbidden = {"nodes", "events"}
    files, _ = await bundled(session)
    assert "you may not list nodes in the cluster" in files["errors.txt"]
    assert "you may not list events in namespace ml" in files["errors.txt"]
    planted.forbidden = {"llmdeployments"}
    with pytest.raises(ClusterError, match=r"list llmdeployments\.kvasir\.dev"):
        await bundled(session)


async def test_a_bundle_has_a_bound(
    session: ClusterSession, planted: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(support_bundle, "MAX_BYTES", 10)
    files, errors = await bundled(session)
    assert "logs/ml/qwen-a/engine.previous.log" in files
    assert "metrics/ml/qwen-b.txt" not in files
    assert any("left out, the bundle has 10 bytes already" in each for each in errors)
