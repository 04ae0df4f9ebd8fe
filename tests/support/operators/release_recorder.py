"""Record a release: its chart as a package, and all that its operator writes into a cluster.

    PYTHONPATH=tests:e2e:e2e/cluster .venv/bin/python -m support.operators.release_recorder 94aadbb

runs the operator of that commit in this environment, on an API server with its own definition,
until every LLMDeployment of DEPLOYMENTS is Ready. `recorded_release.py` plays it again, so tests
need neither the commit, which a shallow clone has not, nor the operator's old dependencies.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.operators.operator_site import Routers, Site
from support.operators.recorded_release import PACKAGES, Write

from harness.binaries import binary
from harness.control_plane import ControlPlane
from harness.fixtures import running_plane
from kvasir.cli.local.ports import free_ports
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access

REPOSITORY = Path(__file__).parents[3]
NAMESPACE = "models"

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "plain": {"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 2},
    "tuned": {
        "model": {"uri": "builtin://kvasir-tiny", "name": "Org/Tuned", "aliases": ["tuned"]},
        "engine": {
            "config": {"device": "sim", "maxNumSeqs": 64},
            "args": ["--speed-profile", "slow"],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "own", "key": "b"}}},
            ],
        },
        "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "2Gi"}},
        "lifecycle": {"drainSeconds": 20, "preStopSeconds": 3},
        "router": {"policy": "session", "holdSeconds": 30},
        "networkPolicy": {"allowedNamespaces": ["monitoring"]},
        "podTemplate": {
            "nodeSelector": {"pool": "models"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "labels": {"team": "a"},
        },
    },
    "cached": {
        "model": {"uri": "hf://org/model", "secretRef": {"name": "hub"}},
        "cache": {"pvc": {"size": "10Gi"}, "retention": "Retain"},
    },
    "scaled": {
        "model": {"uri": "builtin://kvasir-tiny", "name": "scaled"},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 3, "metric": "queue", "target": 4},
    },
}
"""Specs of LLMDeployments, one for each kind of thing that is made for them."""

SECRETS = {"own": {"b": "2"}, "hub": {"token": "t"}}

OLD_OPERATOR = """
import json, os, sys
from kvasir.cluster import Cluster

def recorded(name):
    send = getattr(Cluster, name)
    async def write(self, kind, body, manager, part=""):
        answer = await send(self, kind, body, manager, *([part] if part else []))
        with open(os.environ["RECORD"], "a") as file:
            line = {"plural": kind.plural, "manager": manager, "part": part, "body": body}
            print(json.dumps(line), file=file)
        return answer
    setattr(Cluster, name, write)

recorded("apply")
from kvasir.cli.main import main
sys.argv[0] = "kvasir"
main()
"""
"""The operator's process, which writes down each server-side apply that was answered."""


def package_chart(commit: str, source: Path) -> Path:
    """Write the chart of the checkout `source` into PACKAGES; return its path."""
    done = subprocess.run(
        [binary("helm"), "package", source / "charts/kvasir", "--destination", PACKAGES],
        check=True,
        capture_output=True,
        text=True,
    )
    print(commit, done.stdout.strip())
    return Path(done.stdout.rpartition(": ")[2].strip())


def check_out(commit: str, directory: Path) -> None:
    archive = subprocess.run(
        ["git", "archive", commit], cwd=REPOSITORY, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=directory, input=archive, check=True)


class OldOperator:
    """The process of a checkout's operator, with the rights of an admin."""

    def __init__(self, source: Path, plane: ControlPlane, directory: Path, admin_port: int) -> None:
        self.record = directory / "record.jsonl"
        self.log = directory / "operator.log"
        secret = directory / "fleet-secret"
        secret.write_text("0" * 48)
        self._command = [
            *(sys.executable, "-c", OLD_OPERATOR, "operator", "--namespace", "kvasir"),
            *("--router-namespace", "kvasir", "--router-admin-port", str(admin_port)),
            *("--image-cpu", "registry.example.com/kvasir/engine-cpu:0.1.0"),
            *("--image-cuda", "registry.example.com/kvasir/engine-cuda:0.1.0"),
            *("--image-sim", "registry.example.com/kvasir/engine-sim:0.1.0"),
            *("--fleet-secret-file", str(secret), "--lease-name", "kvasir-kvasir-operator"),
            *("--router-url", "http://kvasir-router.kvasir.svc", "--resync-seconds", "1"),
            *("--host", "127.0.0.1", "--metrics-port", str(free_ports(1)[0])),
        ]
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{source / 'api'}:{source / 'operator'}",
            "KUBECONFIG": str(plane.kubeconfig),
            "RECORD": str(self.record),
        }

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    def writes(self) -> list[Write]:
        """The last apply of each object and subresource, by kind and name, Jobs last."""
        found: dict[tuple[str, str, str], Write] = {}
        for line in self.record.read_text().splitlines():
            write: Write = json.loads(line)
            found[write["plural"], write["body"]["metadata"]["name"], write["part"]] = write
        # A Job's name stands for the volume, which is there before it
        return [found[key] for key in sorted(found, key=lambda it: (it[0] == "jobs", *it))]


async def record(source: Path, plane: ControlPlane, directory: Path) -> list[Write]:
    """Run the operator until all is Ready; return its writes, with UIDs as `recorded_release`
    expects them."""
    plane.define((source / "charts/kvasir/files/crd.yaml").read_text())
    for name in ("kvasir", NAMESPACE):
        plane.kubectl("create", "namespace", name)
    for name, data in SECRETS.items():
        literals = [f"--from-literal={key}={value}" for key, value in data.items()]
        plane.kubectl("-n", NAMESPACE, "create", "secret", "generic", name, *literals)
    routers = Routers()
    operator = OldOperator(source, plane, directory, routers.port)
    process = operator.start()
    access = await load_access(environ={"KUBECONFIG": str(plane.kubeconfig)})
    try:
        async with Cluster(access, timeout=60) as cluster:
            await Site(cluster, "kvasir", routers).start_router()
            site = Site(cluster, NAMESPACE, routers)
            text = json.dumps([*map(_user_write, DEPLOYMENTS), *await _settle(site, operator)])
            for name in DEPLOYMENTS:
                text = text.replace((await site.get(name=name))["metadata"]["uid"], f"UID-{name}")
            # Two recordings of a release are the same
            text = re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-01-01T00:00:00Z", text)
            found: list[Write] = json.loads(text)
            return found
    except BaseException:
        print(operator.log.read_text()[-5000:])
        raise
    finally:
        process.terminate()
        process.wait()
        routers.close()


async def _settle(site: Site, operator: OldOperator) -> list[Write]:
    for name, spec in DEPLOYMENTS.items():
        await site.apply(name, **spec)

    async def is_ready() -> bool:
        await site.finish_downloads()
        states = [await site.condition("Ready", name) for name in DEPLOYMENTS]
        return all(state[0] == "True" for state in states)

    await site.eventually(is_ready, "all of them Ready")
    return operator.writes()


def _user_write(name: str) -> Write:
    metadata = {"name": name, "namespace": NAMESPACE}
    head = {"apiVersion": "kvasir.dev/v1alpha1", "kind": "LLMDeployment", "metadata": metadata}
    body = {**head, "spec": DEPLOYMENTS[name]}
    return {"plural": "llmdeployments", "manager": "user", "part": "", "body": body}


def main(commit: str) -> None:
    """Write kvasir-VERSION.tgz and kvasir-VERSION.json into PACKAGES."""
    with tempfile.TemporaryDirectory() as temporary:
        source, directory = Path(temporary) / "source", Path(temporary) / "run"
        source.mkdir()
        directory.mkdir()
        check_out(commit, source)
        package = package_chart(commit, source)
        with running_plane(directory / "plane") as plane:
            writes = asyncio.run(record(source, plane, directory))
        package.with_suffix(".json").write_text(json.dumps(writes, indent=1) + "\n")
        print(f"{len(writes)} writes")


if __name__ == "__main__":
    main(sys.argv[1])
