"""Releases on an API server that was empty: install, upgrade, uninstall, and again elsewhere.

It has no nodes: what is installed is accepted, not run. That it runs is e2e/kubernetes.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.commands import wait_for
from harness.control_plane import ControlPlane
from harness.errors import HarnessError

pytestmark = pytest.mark.slow

PACKAGES = Path(__file__).parent / "packages"
"""The first chart that could be installed, with the first definition: what upgrades begin from."""
CRD = "llmdeployments.kvasir.dev"
CRDS = (CRD, "llmdeploymentclasses.kvasir.dev", "modelnames.kvasir.dev")
PREFIX = "customresourcedefinition.apiextensions.k8s.io/"
REGISTRY = {"global": {"imageRegistry": "registry.example.com/kvasir"}}
SECONDS = 60


def secret(plane: ControlPlane, namespace: str, name: str) -> dict[str, str]:
    data = plane.kubectl.json("-n", namespace, "get", "secret", name)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


@pytest.mark.slow
def test_a_releases_life(cluster, plane, charts) -> None:
    kubectl, chart = plane.kubectl, charts / "kvasir"
    here = ("--namespace", "kvasir", "--create-namespace")

    said = cluster("install", "kvasir", chart, *here, values=REGISTRY)
    assert "kubectl get secret -n kvasir kvasir-keys" in said
    assert 'curl http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $KEY"' in said
    kubectl("wait", "--for=condition=established", f"crd/{CRD}", "--timeout=60s")
    keys, fleet = (secret(plane, "kvasir", f"kvasir-{name}") for name in ("keys", "fleet-secret"))
    assert len(keys["first-key"]) == 46
    assert len(fleet["secret"]) == 48
    plane.apply((charts.parent / "manifests/tiny.yaml").read_text())

    # An upgrade keeps what was made, and what was added to it.
    more = keys["keys.yaml"] + "  - {id: second, key: kv-fedcba9876543210}\n"
    encoded = base64.b64encode(more.encode()).decode()
    patch = json.dumps({"data": {"keys.yaml": encoded}})
    kubectl("-n", "kvasir", "patch", "secret", "kvasir-keys", "-p", patch)
    cluster("upgrade", "kvasir", chart, *here, values=REGISTRY | {"router": {"replicas": 3}})
    assert secret(plane, "kvasir", "kvasir-keys") == keys | {"keys.yaml": more}
    assert secret(plane, "kvasir", "kvasir-fleet-secret") == fleet
    router = kubectl.json("-n", "kvasir", "get", "deployment", "kvasir-router")
    assert router["spec"]["replicas"] == 3

    # A rollback brings back no revoked key, and takes no new one.
    cluster("rollback", "kvasir", "1", "--namespace", "kvasir")
    router = kubectl.json("-n", "kvasir", "get", "deployment", "kvasir-router")
    assert router["spec"]["replicas"] == 2
    assert secret(plane, "kvasir", "kvasir-keys") == keys | {"keys.yaml": more}
    assert "kind: Secret" not in cluster("get", "manifest", "kvasir", "--namespace", "kvasir")

    # Gone, all but the definition, the keys and what users made.
    cluster("uninstall", "kvasir", "--namespace", "kvasir")
    left = kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert "kvasir" not in left
    left = kubectl("-n", "kvasir", "get", "all,roles,networkpolicies,pdb", "-o", "name")
    assert "kvasir-" not in left, left
    said = cluster("install", "kvasir", chart, *here, values=REGISTRY)
    assert secret(plane, "kvasir", "kvasir-keys") == keys | {"keys.yaml": more}
    cluster("uninstall", "kvasir", "--namespace", "kvasir")
    kubectl("-n", "kvasir", "delete", "secret", "kvasir-keys", "kvasir-fleet-secret")
    assert "kvasir-tiny" in kubectl("get", "llmd", "-A", "-o", "name")

    # Under another name, in another namespace. The definition is left as it is...
    there = ("--namespace", "serving", "--create-namespace")
    said = cluster("install", "prod", chart, *there, values=REGISTRY)
    assert "is from another release (kvasir/kvasir)" in said
    assert _owners(plane) == {"kvasir/kvasir"}
    # ... until this release is told to take it.
    adopting = REGISTRY | {"crds": {"adopt": True}}
    said = cluster("upgrade", "prod", chart, *there, "--take-ownership", values=adopting)
    assert "another release" not in said
    assert _owners(plane) == {"serving/prod"}
    cluster("upgrade", "prod", chart, *there, values=REGISTRY)
    assert "kvasir-tiny" in kubectl("get", "llmd", "-A", "-o", "name")
    cluster("uninstall", "prod", "--namespace", "serving")
    plane.undefine(*CRDS)


@pytest.mark.slow
def test_the_first_packaged_chart_is_upgraded_with_its_definition(cluster, plane, charts) -> None:
    package = PACKAGES / "kvasir-0.0.1.tgz"
    here = ("--namespace", "upgraded", "--create-namespace")
    cluster("install", "kvasir", package, *here, values=REGISTRY)
    plane.kubectl("wait", "--for=condition=established", f"crd/{CRD}", "--timeout=60s")
    before = _schema(plane)
    keys = secret(plane, "upgraded", "kvasir-keys")
    plane.kubectl("-n", "upgraded", "apply", "-f", charts.parent / "manifests/tiny.yaml")
    cluster("upgrade", "kvasir", charts / "kvasir", *here, values=REGISTRY)
    made = yaml.safe_load((charts / "kvasir/files/crds/llmdeployments.yaml").read_text())
    assert _fields(_schema(plane)) == _fields(made["spec"]["versions"][0])
    after = _fields(_schema(plane))
    maps = tuple(each.removesuffix("*") for each in after if each.endswith(".*"))
    assert [each for each in _fields(before) - after if not each.startswith(maps)] == []
    assert after - _fields(before), "a field was added since"
    assert secret(plane, "upgraded", "kvasir-keys") == keys
    # Its manifest held the Secrets: they are out of it now, and stay in the cluster.
    for values in (REGISTRY, REGISTRY | {"router": {"replicas": 3}}):
        cluster("upgrade", "kvasir", charts / "kvasir", *here, values=values)
        assert secret(plane, "upgraded", "kvasir-keys") == keys
    assert "kind: Secret" not in cluster("get", "manifest", "kvasir", "--namespace", "upgraded")
    assert "kvasir-tiny" in plane.kubectl("-n", "upgraded", "get", "llmd", "-o", "name")
    assert set(CRDS) <= set(plane.kubectl("get", "crd", "-o", "name").replace(PREFIX, "").split())
    cluster("uninstall", "kvasir", "--namespace", "upgraded")
    plane.undefine(*CRDS)


def _owners(plane: ControlPlane) -> set[str]:
    """The releases that own the definitions."""
    found = plane.kubectl.json("get", "crd", *CRDS)["items"]
    notes = [each["metadata"]["annotations"] for each in found]
    parts = [[it[f"meta.helm.sh/release-{part}"] for part in ("namespace", "name")] for it in notes]
    return set(map("/".join, parts))


def _schema(plane: ControlPlane) -> dict:
    return plane.kubectl.json("get", "crd", CRD)["spec"]["versions"][0]


def _fields(version: dict) -> set[str]:
    def walk(schema: dict, path: str) -> Iterator[str]:
        for name, part in schema.get("properties", {}).items():
            yield f"{path}.{name}"
            yield from walk(part, f"{path}.{name}")
        if isinstance(schema.get("additionalProperties"), dict):
            yield f"{path}.*"
        if isinstance(schema.get("items"), dict):
            yield from walk(schema["items"], f"{path}[]")

    return set(walk(version["schema"]["openAPIV3Schema"], ""))


def test_the_api_server_takes_every_object(render, values_name, defined) -> None:
    objects = render(values_name)
    text = "\n---\n".join(json.dumps(each) for each in objects)
    apply = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    said = defined.kubectl(*apply, "--force-conflicts", input=text)
    assert said.count("serverside-applied (server dry run)") == len(objects)


def test_monitors_come_and_go_with_a_release(cluster, charts, defined) -> None:
    monitoring = {"podMonitor": {"enabled": True}, "rules": {"enabled": True}}
    values = REGISTRY | {"crds": {"enabled": False}, "monitoring": monitoring}
    here = ("--namespace", "watched")
    cluster("install", "watched", charts / "kvasir", *here, "--create-namespace", values=values)
    kinds = ("-n", "watched", "get", "podmonitors,prometheusrules", "-o", "name")
    assert defined.kubectl(*kinds).split() == [
        "podmonitor.monitoring.coreos.com/watched-kvasir-operator",
        "podmonitor.monitoring.coreos.com/watched-kvasir-router",
        "prometheusrule.monitoring.coreos.com/watched-kvasir",
    ]
    cluster("uninstall", "watched", *here)
    assert defined.kubectl(*kinds) == ""


@pytest.mark.parametrize("name", ["router", "operator"])
def test_pods_pass_where_restricted_ones_alone_do(render, find, values_name, defined, name) -> None:
    namespace = f"restricted-{values_name}-{name}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    defined.apply(json.dumps(space | {"metadata": {"name": namespace, "labels": labels}}))
    template = find(render(values_name), "Deployment", f"kvasir-{name}")["spec"]["template"]
    # Neither is there in this namespace, and neither is looked at.
    spec = template["spec"] | {"serviceAccountName": "default"}
    spec.pop("priorityClassName", None)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", "namespace": namespace},
        "spec": spec,
    }

    def is_taken() -> bool:
        try:
            defined.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
        except HarnessError as error:
            if "serviceaccount" in str(error):
                return False  # not made yet
            raise
        return True

    wait_for("the default service account", is_taken, SECONDS)
