"""The control plane is a real one: it authorises, controls, and survives its API server."""

from __future__ import annotations

import json
import os
import socket

import pytest

from harness.binaries import KUBE, OTHERS
from harness.commands import wait_for
from harness.control_plane import VERSION, ControlPlane
from harness.errors import HarnessError
from harness.kubectl import Kubectl

pytestmark = pytest.mark.slow

GADGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.harness.test"},
    "spec": {
        "group": "harness.test",
        "names": {"kind": "Gadget", "plural": "gadgets"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


def test_it_says_the_version_it_was_built_from(control_plane: ControlPlane) -> None:
    version = json.loads(control_plane.kubectl("version", "-o", "json"))["serverVersion"]
    built = OTHERS.get(os.environ.get(VERSION, ""), KUBE)
    assert [version["major"], version["minor"]] == built.version.split(".")[:2]


def test_controllers_make_what_an_object_asks_for(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    control_plane.kubectl(
        "-n", namespace, "create", "deployment", "web", "--image=none", "--replicas=2"
    )

    def pods() -> list[str]:
        return control_plane.kubectl("-n", namespace, "get", "pods", "-o", "name").split()

    wait_for("two pods", lambda: len(pods()) == 2, 60)
    control_plane.kubectl("-n", namespace, "delete", "deployment", "web")
    wait_for("their collection", lambda: not pods(), 60)


def test_a_service_account_may_do_what_rbac_says(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    account = Kubectl(control_plane.kubeconfig_for(f"{namespace}/default"))
    with pytest.raises(HarnessError, match="is forbidden"):
        account("-n", namespace, "get", "configmaps")
    control_plane.kubectl(
        *("-n", namespace, "create", "rolebinding", "view", "--clusterrole=view"),
        f"--serviceaccount={namespace}:default",
    )
    wait_for("the right", lambda: _may_read(account, namespace), 30)
    with pytest.raises(HarnessError, match="is forbidden"):
        account("-n", namespace, "create", "configmap", "made")


def test_a_definition_goes_at_once_also_when_nobody_asked_for_its_kind(
    control_plane: ControlPlane,
) -> None:
    """Three times, since the API server loses this race only now and then."""
    name = "gadgets.harness.test"
    for _ in range(3):
        control_plane.define(json.dumps(GADGETS))
        control_plane.undefine(name)
        assert name not in control_plane.kubectl("get", "crd", "-o", "name")
    control_plane.undefine(name)


def _may_read(account: Kubectl, namespace: str) -> bool:
    try:
        return "kube-root-ca.crt" in account("-n", namespace, "get", "configmaps")
    except HarnessError:
        return False


def test_what_was_written_is_there_after_a_restart(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    control_plane.stop_apiserver()
    assert not control_plane.is_ready()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((control_plane.host, int(control_plane.url.rpartition(":")[2])))
    control_plane.start_apiserver()
    assert control_plane.kubectl("get", "namespace", namespace, "-o", "name")


def test_a_paused_server_keeps_connections_and_answers_later(control_plane: ControlPlane) -> None:
    control_plane.pause_apiserver()
    try:
        assert not control_plane.is_ready()
    finally:
        control_plane.resume_apiserver()
    wait_for("its answer", control_plane.is_ready, 60)


def test_an_account_without_a_namespace_is_refused(control_plane: ControlPlane) -> None:
    with pytest.raises(HarnessError, match="write NAMESPACE/NAME"):
        control_plane.token_for("default")
