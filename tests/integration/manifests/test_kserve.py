"""The samples for KServe against its own CRDs on a real API server, and what they run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from harness.errors import HarnessError
from harness.go_modules import KSERVE, module_directory
from kvasir.cli.local.ports import free_ports

pytestmark = pytest.mark.slow

MANIFESTS = Path(__file__).parents[3] / "manifests" / "kserve"
CRDS = ("clusterservingruntimes", "inferenceservices")


def read(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((MANIFESTS / name).read_text())
    return manifest


@pytest.fixture(scope="module")
def kserve(control_plane) -> Iterator[Any]:
    """The control plane with KServe's kinds."""
    try:
        directory = module_directory(*KSERVE) / "config" / "crd" / "full"
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)
    names = [f"{crd}.serving.kserve.io" for crd in CRDS]
    files = [directory / f"serving.kserve.io_{crd}.yaml" for crd in CRDS]
    control_plane.define("\n---\n".join(file.read_text() for file in files))
    yield control_plane
    control_plane.undefine(*names)


@pytest.mark.parametrize("name", ["runtime.yaml", "inferenceservice.yaml"])
def test_kserves_schema_takes_every_field(kserve, name) -> None:
    namespace = kserve.namespace()
    apply = ("apply", "-n", namespace, "--validate=strict", "-f", "-", "-o", "json")
    text = (MANIFESTS / name).read_text()
    stored = yaml.safe_load(kserve.kubectl(*apply, input=text))
    given = read(name)
    assert missing(given["spec"], stored["spec"]) == []
    broken = text.replace("protocolVersions", "protocols").replace("modelFormat", "format")
    with pytest.raises(HarnessError, match="unknown field"):
        kserve.kubectl(*apply, input=broken)


def missing(given: Any, stored: Any, at: str = "spec") -> list[str]:
    """Where `stored` does not hold what was `given`: fields that the schema dropped."""
    if isinstance(given, dict):
        if not isinstance(stored, dict):
            return [at]
        return [m for k, v in given.items() for m in missing(v, stored.get(k), f"{at}.{k}")]
    if isinstance(given, list):
        if not isinstance(stored, list) or len(given) != len(stored):
            return [at]
        return [m for i, v in enumerate(given) for m in missing(v, stored[i], f"{at}[{i}]")]
    return [] if given == stored else [at]


def test_the_container_is_restricted_and_has_grace_for_its_drain() -> None:
    [container] = read("runtime.yaml")["spec"]["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = next(a for a in container["args"] if a.startswith("--drain-timeout="))
    assert before + int(drain.partition("=")[2]) < 30


def test_its_command_serves_and_answers_its_probes() -> None:
    """The runtime's arguments as they are, with the shipped model for /mnt/models."""
    [container] = read("runtime.yaml")["spec"]["containers"]
    [port] = free_ports(1)
    arguments = [
        argument.replace("{{.Name}}", "qwen")
        .replace("/mnt/models", "builtin://kvasir-tiny")
        .replace("0.0.0.0", "127.0.0.1")
        .replace("8080", str(port))
        for argument in container["args"]
    ]
    command = [sys.executable, "-m", "kvasir", *arguments, "--device", "sim"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 120
            probe = container["startupProbe"]["httpGet"]["path"]
            while not is_ok(url + probe):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert is_ok(url + container["livenessProbe"]["httpGet"]["path"])
            assert is_ok(url + "/metrics")
            tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}
            answer = httpx.post(f"{url}/v2/models/qwen/infer", json={"inputs": [tensor]})
            assert answer.json()["outputs"][0]["datatype"] == "BYTES"
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def is_ok(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False
