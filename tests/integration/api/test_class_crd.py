"""The CustomResourceDefinition of LLMDeploymentClasses, as a real API server enforces it."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.errors import HarnessError
from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir.resource.class_defaults.defaults_spec import ClassSettings
from kvasir.resource.crd_writer import as_yaml
from kvasir.resource.ownership.deployment_class import class_manifest, read_settings

pytestmark = pytest.mark.slow

CLASSES = Kind("kvasir.dev/v1alpha1", "llmdeploymentclasses", namespaced=False)
SETTINGS: dict[str, Any] = {
    "defaults": {
        "profile": "h100",
        "images": {"vllm": "vllm/vllm-openai:v0.24.0"},
        "imagePullSecrets": [{"name": "mirror"}],
        "imageMirrors": [
            {"source": "docker.io", "mirror": "registry.example.com:5000/hub"},
            {"source": "*", "mirror": "registry.example.com"},
        ],
        "hubEndpoint": "https://hub.example.com",
        "caBundle": {"configMapRef": {"name": "corporate"}},
        "proxy": {"httpsProxy": "http://proxy.example.com:3128", "noProxy": ["10.0.0.0/8"]},
    },
    "profiles": [
        {
            "name": "h100",
            "description": "Eight H100 of one host.",
            "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Ti"}},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        }
    ],
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a default profile that is none": (
        {"defaults": {"profile": "l4"}},
        "defaults.profile is none of profiles; correct it, or add that profile",
    ),
    "two places of certificates": (
        {"defaults": {"caBundle": {"configMapRef": {"name": "a"}, "secretRef": {"name": "a"}}}},
        "caBundle names one object: give either configMapRef or secretRef",
    ),
    "no certificates": (
        {"defaults": {"caBundle": {}}},
        "caBundle names one object: give either configMapRef or secretRef",
    ),
    "a proxy that is none": (
        {"defaults": {"proxy": {"noProxy": ["a"]}}},
        "proxy names no proxy; give httpProxy or httpsProxy",
    ),
    "a password": (
        {"defaults": {"proxy": {"httpProxy": "http://me:pw@proxy:3128"}}},
        "write a proxy as http://HOST:PORT, without user and password",
    ),
    "a mirror with a scheme": (
        {"defaults": {"imageMirrors": [{"source": "docker.io", "mirror": "https://r.example"}]}},
        "should match",
    ),
    "a profile twice": (
        {"profiles": [{"name": "a"}, {"name": "a"}]},
        "Duplicate value",
    ),
    "an amount": (
        {"profiles": [{"name": "a", "resources": {"limits": {"memory": "much"}}}]},
        "spec.profiles[0].resources.limits.memory in body should match",
    ),
    "less than nothing": (
        {"profiles": [{"name": "a", "resources": {"requests": {"cpu": -1}}}]},
        "spec.profiles[0].resources.requests.cpu in body should be greater than or equal to 0",
    ),
}


@pytest.fixture(scope="module")
def installed(control_plane: Any) -> Any:
    control_plane.define(as_yaml())
    return control_plane


@pytest.fixture
async def cluster(installed: Any) -> AsyncIterator[Cluster]:
    access = await load_access(environ={"KUBECONFIG": str(installed.kubeconfig)})
    async with Cluster(access, timeout=60) as found:
        yield found
    installed.kubectl("delete", "llmdeploymentclasses", "--all")


def manifest(settings: dict[str, Any]) -> dict[str, Any]:
    made = class_manifest("own", "kvasir.dev/ns/lease", (), is_default=False)
    made["spec"] |= copy.deepcopy(settings)
    return made


async def test_accepted_and_read_as_it_was_written(cluster: Cluster) -> None:
    stored = await cluster.create(CLASSES, manifest(SETTINGS), "test")
    assert read_settings(stored) == ClassSettings.model_validate(SETTINGS)
    bare = await cluster.create(
        CLASSES, class_manifest("bare", "kvasir.dev/ns/lease", (), is_default=False), "test"
    )
    assert read_settings(bare) == ClassSettings()


@pytest.mark.parametrize("case", REFUSED)
async def test_refused(cluster: Cluster, case: str) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(ApiError) as refusal:
        await cluster.create(CLASSES, manifest(settings), "test")
    assert message in str(refusal.value)


def test_people_can_read_it(installed: Any) -> None:
    told = installed.kubectl("explain", "llmdclass.spec.defaults")
    assert "Mirrors of registries, for the images of engine and download pods" in told
    assert "a kind of place" in installed.kubectl("explain", "llmdclass.spec.profiles").lower()
    body = json.dumps(manifest({"defaults": {"magic": 1}}))
    with pytest.raises(HarnessError, match="magic"):
        installed.kubectl("create", "-f", "-", input=body)
