"""Rights that a release gives, asked of a real API server."""

import asyncio
import json
import ssl
from collections.abc import Iterator

import httpx
import pytest

from harness.commands import wait_for
from harness.control_plane import ControlPlane
from harness.errors import HarnessError
from kvasir.kube.config import load_access

pytestmark = pytest.mark.slow

CRD = "llmdeployments.kvasir.dev"
SECONDS = 60


class Rights:
    """Ask an API server what somebody may do: SubjectAccessReviews."""

    def __init__(self, plane: ControlPlane) -> None:
        access = asyncio.run(load_access(environ={"KUBECONFIG": str(plane.kubeconfig)}))
        found = access.configuration
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        context.load_cert_chain(found.cert_file, found.key_file)
        self._http = httpx.Client(base_url=access.server, verify=context, timeout=30)

    def close(self) -> None:
        self._http.close()

    def __call__(self, who: str, verb: str, what: str, where: str = "", name: str = "") -> bool:
        """`who` is a service account, NAMESPACE/NAME, or a user; `what` as in `pods/status` or
        `deployments.apps`; `where` a namespace, all of them if empty."""
        user = who if "/" not in who else f"system:serviceaccount:{who.replace('/', ':')}"
        what, _, subresource = what.partition("/")
        resource, _, group = what.partition(".")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "namespace": where,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self._http.post(path, json=review).json()["status"]["allowed"])


@pytest.fixture(scope="module")
def may(plane: ControlPlane) -> Iterator[Rights]:
    rights = Rights(plane)
    yield rights
    rights.close()


READS = ("get", "list", "watch")


def wait_until_may(may: Rights, who: str, rights: list[tuple[str, ...]]) -> None:
    """An API server takes notice of roles and bindings in its own time."""
    for right in rights:
        wait_for(f"{who}'s right to {right}", lambda right=right: may(who, *right), SECONDS)


def test_what_the_operator_may_make_is_chosen(render, defined, may) -> None:
    """Monitoring and autoscaling by others: no right to any of their kinds."""
    other = {"fullnameOverride": "lean", "watchNamespaces": ["default"]}
    chosen = {"operator": {"optionalKinds": ["prometheusrules"]}}
    objects = [each for each in render("defaults", **other, **chosen) if "Role" in each["kind"]]
    defined.apply("\n---\n".join(json.dumps(each) for each in objects))
    verbs = ("get", "create", "patch", "delete")
    refused = (
        "horizontalpodautoscalers.autoscaling",
        "podmonitors.monitoring.coreos.com",
        "scaledobjects.keda.sh",
    )
    who, rules = "kvasir/lean-operator", "prometheusrules.monitoring.coreos.com"
    wait_until_may(may, who, [(verb, rules, "default") for verb in verbs])
    assert not any(may(who, verb, what, "default") for verb in verbs for what in refused)


def test_the_operator_scales_its_routers_where_it_shall_and_nothing_else(
    render, defined, may
) -> None:
    scale = "deployments.apps/scale"
    for enabled, name in ((False, "fixed"), (True, "scaled")):
        chosen = {"router": {"autoscaling": {"enabled": enabled}}, "fullnameOverride": name}
        objects = render("defaults", watchNamespaces=["default"], **chosen)
        roles = [each for each in objects if "Role" in each["kind"]]
        defined.apply("\n---\n".join(json.dumps(each) for each in roles))
    who = "kvasir/scaled-operator"
    wait_until_may(may, who, [("patch", scale, "kvasir", "scaled-router")])
    wait_until_may(
        may, "kvasir/fixed-operator", [("create", "leases.coordination.k8s.io", "kvasir")]
    )
    assert not may("kvasir/fixed-operator", "patch", scale, "kvasir", "fixed-router")
    assert not may(who, "patch", scale, "kvasir")
    assert not may(who, "patch", scale, "default", "scaled-router")
    assert not may(who, "patch", "deployments.apps", "kvasir", "scaled-router")


def test_rights_are_what_is_needed_and_no_more(render, defined, may) -> None:
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    objects = [each for each in render("defaults") if each["kind"] in kinds]
    defined.apply("\n---\n".join(json.dumps(each) for each in objects))
    router, operator = "kvasir/kvasir-router", "kvasir/kvasir-operator"
    read = ("llmdeployments.kvasir.dev", "modelnames.kvasir.dev", "pods")
    reads = [(verb, what) for verb in READS for what in read]
    writes = [
        (verb, what)
        for verb in ("create", "update", "patch", "delete")
        for what in ("pods", "secrets", "deployments.apps", *read[:2])
    ]
    secrets = [(verb, "secrets") for verb in READS]
    wait_until_may(may, router, reads)
    assert [each for each in writes + secrets if may(router, *each)] == []

    needed = [
        *reads,
        ("patch", "llmdeployments.kvasir.dev/status"),
        ("patch", "llmdeployments.kvasir.dev/scale"),
        ("list", "horizontalpodautoscalers.autoscaling"),
        ("create", "deployments.apps"),
        ("create", "events"),
        ("patch", "services"),
        ("delete", "jobs.batch"),
        ("patch", "pods/status"),
        *((verb, "secrets", "default", "kvasir-fleet") for verb in ("get", "create", "patch")),
        ("create", "podmonitors.monitoring.coreos.com"),
        ("list", "nodes"),
        ("get", "customresourcedefinitions.apiextensions.k8s.io", "", CRD),
        ("create", "leases.coordination.k8s.io", "kvasir"),
        ("update", "leases.coordination.k8s.io", "kvasir", "kvasir-operator"),
        *((verb, "modelnames.kvasir.dev") for verb in ("create", "patch", "delete")),
        *((verb, "llmdeploymentclasses.kvasir.dev") for verb in ("watch", "create")),
        ("patch", "llmdeploymentclasses.kvasir.dev", "", "kvasir"),
        ("get", "clusterroles.rbac.authorization.k8s.io", "", "kvasir-kvasir-operator-names"),
    ]
    refused = [
        ("patch", "llmdeploymentclasses.kvasir.dev", "", "other"),
        ("delete", "llmdeploymentclasses.kvasir.dev"),
        ("get", "clusterroles.rbac.authorization.k8s.io"),
        *((verb, "secrets") for verb in ("get", "create", "patch", "update", "delete")),
        ("update", "leases.coordination.k8s.io", "kvasir"),
        ("list", "secrets"),
        ("watch", "secrets", "kvasir"),
        ("delete", "pods"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("patch", "events"),
        ("patch", "llmdeployments.kvasir.dev"),
        ("list", "podmonitors.monitoring.coreos.com"),
        ("delete", "persistentvolumeclaims"),
        ("create", "clusterroles.rbac.authorization.k8s.io"),
        ("create", "rolebindings.rbac.authorization.k8s.io", "kvasir"),
        ("update", "leases.coordination.k8s.io", "default"),
        ("patch", "nodes"),
        ("list", "customresourcedefinitions.apiextensions.k8s.io"),
    ]
    wait_until_may(may, operator, needed)
    assert [what for what in refused if may(operator, *what)] == []


def test_the_operator_writes_one_secret_and_reads_those_that_are_listed(
    render, defined, may
) -> None:
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
    objects = [each for each in render("defaults") if each["kind"] in kinds]
    defined.apply("\n---\n".join(json.dumps(each) for each in objects))
    account = "--as=system:serviceaccount:kvasir:kvasir-operator"
    apply = ("apply", "--server-side", "--validate=false", "-n", "team-a", account, "-f", "-")

    def copy(name: str) -> str:
        metadata = {"name": name, "namespace": "team-a"}
        return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})

    operator = "kvasir/kvasir-operator"
    wait_until_may(may, operator, [("patch", "secrets", "team-a", "kvasir-fleet")])
    defined.kubectl(*apply, input=copy("kvasir-fleet"))
    with pytest.raises(HarnessError, match="forbidden"):
        defined.kubectl(*apply, input=copy("another"))

    assert not may(operator, "get", "secrets", "team-a", "hub-token")
    listed = render("defaults", operator={"readableSecrets": ["hub-token"]})
    defined.apply("\n---\n".join(json.dumps(each) for each in listed if each["kind"] in kinds))
    wait_until_may(may, operator, [("get", "secrets", "team-a", "hub-token")])
    assert not may(operator, "patch", "secrets", "team-a", "hub-token")
    assert not may(operator, "get", "secrets", "team-a", "another")

    bundle = {"defaults": {"caBundle": {"configMapRef": {"name": "corporate-ca"}}}}
    assert not may(operator, "get", "configmaps", "team-a", "corporate-ca")
    trusting = render("defaults", **{"class": {"settings": bundle}})
    defined.apply("\n---\n".join(json.dumps(each) for each in trusting if each["kind"] in kinds))
    wait_until_may(may, operator, [("get", "configmaps", "team-a", "corporate-ca")])
    assert not may(operator, "get", "configmaps", "team-a", "another")
    assert not may(operator, "list", "configmaps", "team-a")


def test_routers_read_the_secrets_that_are_named_and_no_others(render, defined, may) -> None:
    router = "kvasir/kvasir-router"
    assert not may(router, "get", "secrets", "team-a", "provider")
    objects = render("defaults", router={"readableSecrets": ["provider"]})
    kinds = ("ClusterRole", "ClusterRoleBinding")
    defined.apply("\n---\n".join(json.dumps(each) for each in objects if each["kind"] in kinds))
    wait_until_may(may, router, [("get", "secrets", "team-a", "provider")])
    for verb in ("list", "watch", "patch", "delete"):
        assert not may(router, verb, "secrets", "team-a", "provider")
    for verb in ("get", "list"):
        assert not may(router, verb, "secrets", "team-a")
        assert not may(router, verb, "secrets", "team-a", "another")


def test_rights_end_with_the_namespaces_that_are_watched(render, defined, may) -> None:
    defined.kubectl("delete", "clusterrolebinding", "-l", "app.kubernetes.io/instance=kvasir")
    kinds = ("Role", "RoleBinding")
    objects = [each for each in render("namespaced") if each["kind"] in kinds]
    wide = [each for each in render("namespaced") if each["kind"].startswith("Cluster")]
    assert {each["metadata"]["name"] for each in wide} == {
        "kvasir-kvasir-operator-names",
        "kvasir-kvasir-router-names",
    }
    defined.apply("\n---\n".join(json.dumps(each) for each in objects))
    for account in ("kvasir/kvasir-router", "kvasir/kvasir-operator"):
        wait_until_may(may, account, [("list", "pods", team) for team in ("team-a", "team-b")])
        wait_for(
            f"the end of {account}'s right to pods everywhere",
            lambda who=account: not may(who, "list", "pods", "default"),
            SECONDS,
        )
    assert not may("kvasir/kvasir-operator", "list", "nodes")
    assert not may("kvasir/kvasir-operator", "patch", "deployments.apps", "kvasir")


def test_users_get_their_part_with_view_and_edit(render, find, defined, may) -> None:
    for name in ("view", "edit"):
        role = find(render("defaults"), "ClusterRole", f"kvasir-kvasir-{name}")
        defined.apply(json.dumps(role))
        defined.kubectl(
            *("-n", "team-a", "create", "rolebinding", f"{name}er", f"--clusterrole={name}"),
            f"--user={name}er",
        )
    what = "llmdeployments.kvasir.dev"
    for who, verb, part, allowed in (
        ("editer", "create", "", True),
        ("viewer", "list", "", True),
        ("editer", "list", "", True),
        ("editer", "patch", "/scale", True),
        ("viewer", "create", "", False),
        ("viewer", "patch", "/scale", False),
        ("editer", "patch", "/status", False),
        *((who, verb, None, False) for who in ("viewer", "editer") for verb in ("create", "patch")),
    ):
        if part is None:  # of claims nobody may write any
            assert not may(who, verb, "modelnames.kvasir.dev")
            continue
        if allowed:  # a controller adds roles up, in its own time
            wait_for(
                f"{who}'s right to {verb} {what}{part}",
                lambda right=(who, verb, what + part, "team-a"): may(*right),
                SECONDS,
            )
        assert may(who, verb, what + part, "team-a") is allowed
