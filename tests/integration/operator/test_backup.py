"""A namespace comes back of its manifests alone, by the commands of docs/upgrading.md."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.doc_pages import blocks

from harness.binaries import binary
from kvasir.resource import labels
from kvasir_operator.kinds import CLASSES, DEPLOYMENTS

pytestmark = pytest.mark.slow

PAGE = "docs/upgrading.md"
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"replicas": 2},
    "tuned": {
        "model": {"uri": "builtin://kvasir-tiny", "name": "Org/Tuned", "aliases": ["tuned-alias"]},
        "engine": {
            "config": {"device": "sim", "maxNumSeqs": 64},
            "env": [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "b"}}}],
        },
        "podTemplate": {"nodeSelector": {"pool": "models"}},
    },
}


class Shell:
    """The commands of the page in a folder, with a kubectl of the cluster."""

    def __init__(self, plane: Any, namespace: str, directory: Path) -> None:
        self._namespace = namespace
        self._directory = directory
        kubectl = directory / "kubectl"
        kubectl.write_text(
            f'#!/bin/sh\nexec {binary("kube")} kubectl --kubeconfig {plane.kubeconfig} "$@"\n'
        )
        kubectl.chmod(0o755)

    def run(self, begin: str) -> None:
        """The block that begins so, with the test's namespace in place of `models`."""
        [text] = [text for _, text in blocks(PAGE) if text.startswith(begin)]
        text = text.replace("-n models ", f"-n {self._namespace} ")
        text = text.replace("namespace models", f"namespace {self._namespace}")
        path = f"{self._directory}:{os.environ['PATH']}"
        subprocess.run(
            ["bash", "-ec", text],
            cwd=self._directory,
            check=True,
            env={"PATH": path},
        )


async def plans(site: Any) -> dict[str, Any]:
    """What the operator has made of the models: their Deployments, with the revision of pods. That
    of one whose Secret the operator reads stands for the Secret's object, too."""
    found = await site.cluster.list(DEPLOYMENTS, site.namespace)
    for each in found:
        metadata = each["spec"]["template"]["metadata"]
        if metadata["annotations"].pop("kvasir.dev/secrets", None):
            del metadata["labels"][labels.REVISION]
    return {it["metadata"]["name"]: it["spec"] for it in found}


async def test_manifests_alone_bring_a_namespace_back(
    site: Any, start: Any, plane: Any, tmp_path: Path
) -> None:
    shell = Shell(plane, site.namespace, tmp_path)
    literal = ("generic", "hub", "--from-literal=b=2")
    plane.kubectl("-n", site.namespace, "create", "secret", *literal)
    spare = f"{site.namespace}-spare"
    body = {"apiVersion": CLASSES.api_version, "kind": "LLMDeploymentClass"}
    spec = {"controller": "kvasir.dev/of-another"}
    await site.cluster.apply(CLASSES, {**body, "metadata": {"name": spare}, "spec": spec}, "user")
    operator = start()
    for name, wanted in MODELS.items():
        await site.apply(name, **wanted)
    for name in MODELS:
        await site.until("Ready", "True", name=name)
    before = await plans(site)
    shell.run("kubectl get llmd")
    assert operator.stop() == 0
    plane.kubectl("delete", "namespace", site.namespace)
    plane.kubectl("delete", "llmdeploymentclasses,modelnames", "--all")

    shell.run("kubectl create namespace")
    await site.start_router()
    start()
    for name in MODELS:
        await site.until("Ready", "True", name=name)
    assert await plans(site) == before
    restored = plane.kubectl.json("-n", site.namespace, "get", "secret", "hub")
    assert restored["data"] == {"b": "Mg=="}
    there = plane.kubectl.json("get", "llmdeploymentclass", spare)
    assert there["spec"]["controller"] == spec["controller"]
