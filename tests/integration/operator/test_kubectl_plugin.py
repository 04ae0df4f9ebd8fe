"""`kubectl kvasir`, by kubectl itself, on a real API server with the operator at work."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from harness.binaries import binary
from kvasir.kube.objects import label
from kvasir.resource import labels

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
STEPS = [{"weight": 10, "pause": {}}, {"weight": 50, "pause": {}}]
SPEC = {"replicas": 1, "rollout": {"canary": {"steps": STEPS}}}
NEW = {"args": ["--no-overlap"]}


class Plugin:
    """kubectl with the plugin beside it, in the site's namespace."""

    def __init__(self, plane: Any, site: Any, cwd: Path) -> None:
        self.plane, self.site, self.cwd = plane, site, cwd

    async def __call__(
        self, *arguments: str, status: int = 0, kubeconfig: Path | None = None
    ) -> str:
        """Run it while nodes and routers go on; what it printed."""
        command = [binary("kube"), "kubectl", "kvasir", *arguments, "-n", self.site.namespace]
        environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig or self.plane.kubeconfig),
        }
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            env=environment,
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        running = asyncio.create_task(process.communicate())
        while not running.done():
            await self.site.play()
            await asyncio.wait({running}, timeout=0.1)
        text = running.result()[0].decode()
        assert process.returncode == status, text
        return text


@pytest.fixture
def kubectl_kvasir(plane: Any, site: Any, tmp_path: Path) -> Plugin:
    return Plugin(plane, site, tmp_path)


async def paused(site: Any, step: int) -> None:
    async def is_paused() -> bool:
        found = ((await site.get()).get("status") or {}).get("rollout") or {}
        return (found.get("phase"), found.get("step")) == ("Paused", step)

    await site.eventually(is_paused, f"paused at step {step}")


async def test_status_shows_workloads_pods_and_routers(
    site: Any, start: Any, kubectl_kvasir: Plugin
) -> None:
    start()
    await site.apply(replicas=2)
    await site.until("Ready", "True")
    shown = await kubectl_kvasir("status", "m")
    assert f"{site.namespace}/m  Ready  2/2 ready" in shown
    tree = shown.partition("engine  deployment/m")[2]
    assert all(pod["metadata"]["name"] in tree for pod in await site.engines())
    assert f"{site.namespace}/router  router  Running" in shown.partition("routers")[2]
    wide = await kubectl_kvasir("status", "-o", "wide")
    assert "127.0.0.1  cpu:1  revision " in wide
    [told] = json.loads(await kubectl_kvasir("status", "-o", "json"))
    assert [(it["kind"], it["name"], it["desired"]) for it in told["workloads"]] == [
        ("Deployment", "m", 2)
    ]
    assert {pod["workload"] for pod in told["pods"]} == {"m"}
    assert "workloads:" in await kubectl_kvasir("status", "-o", "yaml")
    assert "m in namespace" in await kubectl_kvasir("why", "m")


async def test_why_walks_down_to_the_container(
    site: Any, start: Any, kubectl_kvasir: Plugin
) -> None:
    start()
    site.fate = lambda pod: {
        "phase": "Pending",
        "containerStatuses": [
            {
                "name": labels.ENGINE,
                "image": "none:1",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
            }
        ],
    }
    await site.apply(engine={"image": "none:1"})
    await site.until("Degraded", "True", "ImagePullFailed")
    said = await kubectl_kvasir("why", "m", status=1)
    [pod] = await site.engines()
    for part in (
        "m in namespace",
        "ImagePullFailed: ",
        "Its deployment/m has 0 of 1 replicas ready.",
        f"Its pod {pod['metadata']['name']} is ImagePullBackOff.",
        "Its container engine waits (ImagePullBackOff).",
        "To do: Check name and tag of spec.engine.image",
    ):
        assert part in said, said
    told = json.loads(await kubectl_kvasir("why", "m", "-o", "json", status=1))
    assert (told["ready"], told["log_line"]) == (False, None)
    assert "there is m" in await kubectl_kvasir("why", "other", status=1)


async def test_promote_abort_and_retry(site: Any, start: Any, kubectl_kvasir: Plugin) -> None:
    start()
    await site.apply(**SPEC)
    await site.until("Ready", "True")
    assert "m has no canary" in await kubectl_kvasir("promote", "m", status=1)
    await site.apply(**SPEC, engine=NEW)
    await paused(site, 1)
    shown = await kubectl_kvasir("status", status=1)
    assert "canary Paused at step 1 of 2" in shown, shown
    assert "at step 2 of 2" in await kubectl_kvasir("promote", "m")
    await paused(site, 2)
    said = await kubectl_kvasir("abort", "m")
    assert "the canary is RolledBack at step 2 of 2: Aborted" in said
    late = await kubectl_kvasir("promote", "m", status=1)
    assert "promote has no effect on m: its canary is RolledBack (Aborted)" in late
    assert "at step 1 of 2" in await kubectl_kvasir("retry", "m")
    await paused(site, 1)
    await kubectl_kvasir("promote", "m", "--all")
    await site.until("Ready", "True")
    tracks = {label(pod, labels.TRACK) for pod in await site.engines()}
    assert tracks <= {"", labels.CANARY}


async def test_a_right_that_is_missing_is_named(
    plane: Any, site: Any, kubectl_kvasir: Plugin
) -> None:
    nobody = plane.kubeconfig_for(f"{site.namespace}/default")
    for command in (["status"], ["why", "m"], ["promote", "m"], ["logs", "m"]):
        said = await kubectl_kvasir(*command, status=1, kubeconfig=nobody)
        assert "you may not list llmdeployments.kvasir.dev in namespace" in said


def test_kubectl_completes_names_of_models(plane: Any) -> None:
    namespace = plane.namespace()
    resource = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "qwen", "namespace": namespace},
        "spec": {"model": {"uri": "builtin://kvasir-tiny"}},
    }
    plane.apply(json.dumps(resource))
    command = [binary("kube"), "kubectl", "__complete", "kvasir", "why", "-n", namespace, "q"]
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "KUBECONFIG": str(plane.kubeconfig),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["qwen", ":4"]


async def test_a_support_bundle_has_no_secret(
    plane: Any, site: Any, start: Any, kubectl_kvasir: Plugin
) -> None:
    start()
    planted = "pl4nted-V4lue"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "hub", "namespace": site.namespace},
        "stringData": {"token": planted},
    }
    plane.apply(json.dumps(secret))
    variables = [
        {"name": "INNOCENT", "value": planted},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ]
    await site.apply(engine={"env": variables})
    await site.eventually(site.engines, "engines")
    said = await kubectl_kvasir("support-bundle", "--to", "b.tar.gz")
    assert "b.tar.gz" in said.splitlines()
    file = kubectl_kvasir.cwd / "b.tar.gz"
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        files = {it.name: archive.extractfile(it).read().decode() for it in archive.getmembers()}
    assert [name for name, text in files.items() if planted in text] == []
    [pod] = await site.engines()
    assert pod["metadata"]["name"] in files["kvasir-support/resources/pods.yaml"]
    assert "INNOCENT" in files["kvasir-support/resources/deployments.yaml"]
    assert "gitVersion" in files["kvasir-support/about.json"]
    assert "SuccessfulCreate" in files["kvasir-support/events.yaml"]
    assert "b.tar.gz exists" in await kubectl_kvasir("support-bundle", "--to", "b.tar.gz", status=2)
    missing = kubectl_kvasir.cwd / "c.tar.gz"
    await kubectl_kvasir("support-bundle", "other", "--to", "c.tar.gz", status=1)
    assert not missing.exists()


async def test_plan_says_what_an_edit_restarts_and_changes_nothing(
    plane: Any, site: Any, start: Any, kubectl_kvasir: Plugin
) -> None:
    start()
    await site.apply(replicas=2)
    await site.until("Ready", "True")
    before = await site.get()
    pods = {pod["metadata"]["uid"] for pod in await site.engines()}
    file = kubectl_kvasir.cwd / "m.yaml"

    def write(name: str = "m", **spec: Any) -> None:
        resource = {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": name},
            "spec": {"model": {"uri": "builtin://kvasir-tiny"}, **spec},
        }
        file.write_text(json.dumps(resource))

    write(engine=NEW)
    said = await kubectl_kvasir("plan", "-f", "m.yaml")
    assert "2 pods restart (maxSurge 1, maxUnavailable 0)." in said
    assert "spec.containers[engine].args: + --no-overlap" in said
    write()
    assert "no pod restarts." in await kubectl_kvasir("plan", "-f", "m.yaml")
    write(replicas=3)
    [told] = json.loads(await kubectl_kvasir("plan", "-f", "m.yaml", "-o", "json"))
    assert (told["restarts"], told["replicas"]) == (0, [2, 3])
    write(rolloutStrategy={"maxSurge": 0})
    assert "cannot both be 0" in await kubectl_kvasir("plan", "-f", "m.yaml", status=2)
    write(cache={"pvc": {"size": "1Gi"}})
    assert "cache is for models that are downloaded" in await kubectl_kvasir(
        "plan", "-f", "m.yaml", status=2
    )
    write("other")
    assert "is new: 1 pod start" in await kubectl_kvasir("plan", "-f", "m.yaml")
    after = await site.get()
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert {pod["metadata"]["uid"] for pod in await site.engines()} == pods


async def test_chat_streams_through_the_routers_port_with_a_key_of_a_secret(
    plane: Any, site: Any, kubectl_kvasir: Plugin, server: Any
) -> None:
    """No node forwards a port here, so a program in kubectl's place names that of a server."""
    await site.apply()
    port = {"name": "http", "port": 8080}
    objects = [
        {
            "kind": "Service",
            "metadata": {"name": "router", "labels": {labels.COMPONENT: labels.ROUTER}},
            "spec": {"ports": [port]},
        },
        {"kind": "Secret", "metadata": {"name": "key"}, "stringData": {"k": "kv-1"}},
    ]
    for each in objects:
        each["metadata"]["namespace"] = site.namespace
        plane.apply(json.dumps({"apiVersion": "v1", **each}))
    stand_in = kubectl_kvasir.cwd / "bin" / "kubectl"
    stand_in.parent.mkdir()
    at = server.url.rpartition(":")[2]
    stand_in.write_text(
        f"#!/bin/sh\necho $@ > {kubectl_kvasir.cwd}/called\n"
        f"echo 'Forwarding from 127.0.0.1:{at} -> 8080'\nexec sleep 600\n"
    )
    stand_in.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{stand_in.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(plane.kubeconfig),
    }
    command = [BIN / "kubectl-kvasir", "chat", "m", "-n", site.namespace, "--key-secret", "key"]
    options = {"input": "hi", "env": environment, "capture_output": True, "text": True}
    done = await asyncio.to_thread(subprocess.run, command, timeout=60, **options)
    assert (done.stdout, done.stderr) == ("you said hi\n", "")
    assert server.headers[0]["Authorization"] == "Bearer kv-1"
    assert server.requests[0]["model"] == "m"
    called = (kubectl_kvasir.cwd / "called").read_text()
    # Of several routers in this cluster one is taken
    assert called.startswith("port-forward --address=127.0.0.1 -n operator-")
    assert called.endswith(" service/router :8080\n")
