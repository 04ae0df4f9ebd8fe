"""Releases on an API server that was empty: install, upgrade, uninstall, and again elsewhere.

It has no nodes: what is installed is accepted, not run. That it runs is e2e/kubernetes.
"""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.commands import wait_for
from harness.control_plane import ControlPlane
from harness.errors import HarnessError
from harness.processes import guard

PACKAGES = Path(__file__).parent / "packages"
"""The first chart that could be installed, with the first definition: what upgrades begin from."""
CRD = "llmdeployments.kvasir.dev"
REGISTRY = {"global": {"imageRegistry": "registry.example.com/kvasir"}}
SECONDS = 60

# Their definitions are other projects'.
FOREIGN = ("HTTPRoute", "PodMonitor", "PrometheusRule")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One of its own: releases own cluster-wide objects."""
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    with guard(plane.directory) as watcher:
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()
            watcher.communicate()
            shutil.rmtree(plane.directory / "etcd", ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(helm, plane):
    """Helm with that cluster."""
    return helm.on(plane.kubeconfig)


def secret(plane: ControlPlane, namespace: str, name: str) -> dict[str, str]:
    data = plane.kubectl.json("-n", namespace, "get", "secret", name)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def may(plane: ControlPlane, account: str, *what: str) -> bool:
    """What RBAC says of a service account, NAMESPACE/NAME, or of a user."""
    user = account if "/" not in account else f"system:serviceaccount:{account.replace('/', ':')}"
    try:
        return plane.kubectl("auth", "can-i", *what, f"--as={user}").strip() == "yes"
    except HarnessError:
        return False


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

    # Gone, all but the definition and what users made.
    cluster("uninstall", "kvasir", "--namespace", "kvasir")
    left = kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert "kvasir" not in left
    left = kubectl("-n", "kvasir", "get", "all,secrets,roles,networkpolicies,pdb", "-o", "name")
    assert "kvasir-" not in left, left
    assert "kvasir-tiny" in kubectl("get", "llmd", "-A", "-o", "name")

    # Under another name, in another namespace. The definition is left as it is...
    there = ("--namespace", "serving", "--create-namespace")
    said = cluster("install", "prod", chart, *there, values=REGISTRY)
    assert "is from another release (kvasir/kvasir)" in said
    assert _owner(plane) == "kvasir/kvasir"
    # ... until this release is told to take it.
    adopting = REGISTRY | {"crds": {"adopt": True}}
    said = cluster("upgrade", "prod", chart, *there, "--take-ownership", values=adopting)
    assert "another release" not in said
    assert _owner(plane) == "serving/prod"
    cluster("upgrade", "prod", chart, *there, values=REGISTRY)
    assert "kvasir-tiny" in kubectl("get", "llmd", "-A", "-o", "name")
    cluster("uninstall", "prod", "--namespace", "serving")
    kubectl("delete", "crd", CRD, "--timeout=60s")


def test_the_first_packaged_chart_is_upgraded_with_its_definition(cluster, plane, charts) -> None:
    [package] = PACKAGES.glob("kvasir-*.tgz")
    here = ("--namespace", "upgraded", "--create-namespace")
    cluster("install", "kvasir", package, *here, values=REGISTRY)
    plane.kubectl("wait", "--for=condition=established", f"crd/{CRD}", "--timeout=60s")
    before = _schema(plane)
    keys = secret(plane, "upgraded", "kvasir-keys")
    plane.kubectl("-n", "upgraded", "apply", "-f", charts.parent / "manifests/tiny.yaml")
    cluster("upgrade", "kvasir", charts / "kvasir", *here, values=REGISTRY)
    made = yaml.safe_load((charts / "kvasir/files/crd.yaml").read_text())
    assert _fields(_schema(plane)) == _fields(made["spec"]["versions"][0])
    assert _fields(before) < _fields(_schema(plane)), "a field was added since"
    assert secret(plane, "upgraded", "kvasir-keys") == keys
    assert "kvasir-tiny" in plane.kubectl("-n", "upgraded", "get", "llmd", "-o", "name")
    cluster("uninstall", "kvasir", "--namespace", "upgraded")
    plane.kubectl("delete", "crd", CRD, "--timeout=60s")


def _owner(plane: ControlPlane) -> str:
    notes = plane.kubectl.json("get", "crd", CRD)["metadata"]["annotations"]
    return "/".join(notes[f"meta.helm.sh/release-{part}"] for part in ("namespace", "name"))


def _schema(plane: ControlPlane) -> dict:
    return plane.kubectl.json("get", "crd", CRD)["spec"]["versions"][0]


def _fields(version: dict) -> set[str]:
    def walk(schema: dict, path: str) -> Iterator[str]:
        for name, part in schema.get("properties", {}).items():
            yield f"{path}.{name}"
            yield from walk(part, f"{path}.{name}")
        if isinstance(schema.get("items"), dict):
            yield from walk(schema["items"], f"{path}[]")

    return set(walk(version["schema"]["openAPIV3Schema"], ""))


@pytest.fixture(scope="module")
def defined(plane, charts) -> ControlPlane:
    """The cluster with the definition and the namespaces that values name."""
    plane.apply((charts / "kvasir/files/crd.yaml").read_text())
    plane.kubectl("wait", "--for=condition=established", f"crd/{CRD}", "--timeout=60s")
    for name in ("kvasir", "team-a", "team-b"):
        plane.kubectl.apply(f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}")
    return plane


def test_the_api_server_takes_every_object(render, values_name, defined) -> None:
    own = [each for each in render(values_name) if each["kind"] not in FOREIGN]
    own = [each for each in own if each["kind"] != "APIService"] + [
        each for each in own if each["kind"] == "APIService"
    ]
    text = "\n---\n".join(json.dumps(each) for each in own)
    said = defined.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-"), input=text
    )
    assert said.count("serverside-applied (server dry run)") == len(own)


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


READS = ("get", "list", "watch")


def test_rights_are_what_is_needed_and_no_more(render, defined) -> None:
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    objects = [each for each in render("defaults") if each["kind"] in kinds]
    defined.apply("\n---\n".join(json.dumps(each) for each in objects))
    router, operator = "kvasir/kvasir-router", "kvasir/kvasir-operator"
    everywhere = "--all-namespaces"
    for verb in READS:
        for account in (router, operator):
            assert may(defined, account, verb, "llmdeployments.kvasir.dev", everywhere)
            assert may(defined, account, verb, "pods", everywhere)
    for verb in ("create", "update", "patch", "delete"):
        for what in ("pods", "secrets", "deployments.apps", "llmdeployments.kvasir.dev"):
            assert not may(defined, router, verb, what, everywhere), (verb, what)
    for verb in READS:
        assert not may(defined, router, verb, "secrets", everywhere)

    needed = [
        ("patch", "llmdeployments.kvasir.dev/status", everywhere),
        ("create", "deployments.apps", everywhere),
        ("patch", "services", everywhere),
        ("delete", "jobs.batch", everywhere),
        ("patch", "pods/status", everywhere),
        ("get", "secrets", everywhere),
        ("create", "podmonitors.monitoring.coreos.com", everywhere),
        ("list", "nodes"),
        ("get", "customresourcedefinitions.apiextensions.k8s.io", CRD),
        ("update", "leases.coordination.k8s.io", "-n", "kvasir"),
    ]
    refused = [
        ("list", "secrets", everywhere),
        ("watch", "secrets", "-n", "kvasir"),
        ("delete", "pods", everywhere),
        ("create", "pods", everywhere),
        ("create", "pods/exec", everywhere),
        ("patch", "llmdeployments.kvasir.dev", everywhere),
        ("patch", "llmdeployments.kvasir.dev/scale", everywhere),
        ("delete", "persistentvolumeclaims", everywhere),
        ("create", "clusterroles.rbac.authorization.k8s.io"),
        ("create", "rolebindings.rbac.authorization.k8s.io", "-n", "kvasir"),
        ("update", "leases.coordination.k8s.io", "-n", "default"),
        ("patch", "nodes"),
        ("list", "customresourcedefinitions.apiextensions.k8s.io"),
    ]
    assert [what for what in needed if not may(defined, operator, *what)] == []
    assert [what for what in refused if may(defined, operator, *what)] == []


def test_rights_end_with_the_namespaces_that_are_watched(render, defined) -> None:
    defined.kubectl("delete", "clusterrolebinding", "-l", "app.kubernetes.io/instance=kvasir")
    kinds = ("Role", "RoleBinding")
    objects = [each for each in render("namespaced") if each["kind"] in kinds]
    assert not [each for each in render("namespaced") if each["kind"].startswith("Cluster")]
    defined.apply("\n---\n".join(json.dumps(each) for each in objects))
    for account in ("kvasir/kvasir-router", "kvasir/kvasir-operator"):
        for namespace, has in (("team-a", True), ("team-b", True), ("default", False)):
            assert may(defined, account, "list", "pods", "-n", namespace) is has
    assert not may(defined, "kvasir/kvasir-operator", "list", "nodes")
    assert not may(defined, "kvasir/kvasir-operator", "patch", "deployments.apps", "-n", "kvasir")


def test_users_get_their_part_with_view_and_edit(render, find, defined) -> None:
    for name in ("view", "edit"):
        role = find(render("defaults"), "ClusterRole", f"kvasir-kvasir-{name}")
        defined.apply(json.dumps(role))
        defined.kubectl(
            *("-n", "team-a", "create", "rolebinding", f"{name}er", f"--clusterrole={name}"),
            f"--user={name}er",
        )
    what = "llmdeployments.kvasir.dev"
    for verb, viewer, editor in (("list", True, True), ("create", False, True)):
        wait_for(
            f"the right to {verb} to be added up",
            lambda verb=verb: may(defined, "editer", verb, what, "-n", "team-a"),
            SECONDS,
        )
        assert may(defined, "viewer", verb, what, "-n", "team-a") is viewer
        assert may(defined, "editer", verb, what, "-n", "team-a") is editor
    assert may(defined, "editer", "patch", f"{what}/scale", "-n", "team-a")
    assert not may(defined, "editer", "patch", f"{what}/status", "-n", "team-a")
