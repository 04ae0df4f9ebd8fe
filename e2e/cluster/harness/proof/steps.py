"""Steps that happen to a deployment under load: each returns when things are settled again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from harness.cluster import Cluster
from harness.commands import wait_for
from harness.proof.deployment import Deployment
from harness.proof.pod_watch import PodWatch, asked_to_go, serves_since
from harness.proof.release import Release
from kvasir.resource import labels

OTHER_TAG = "localhost/kvasir/engine-sim:again"
"""The engine's image under another name: a change of version that needs no second build."""
OUTAGE_SECONDS = 30


@dataclass(frozen=True)
class Stage:
    """Cluster, release and deployment of the steps. Routers and operator are on the first node, so
    `lost` may go."""

    cluster: Cluster
    release: Release
    deployment: Deployment
    lost: str = "n2"

    def scale_up(self) -> None:
        self.deployment.scale(4)
        self.deployment.wait_ready(4)

    def scale_down(self) -> None:
        self.deployment.scale(2)
        self.deployment.wait_ready(2)

    def change_image(self) -> None:
        self.deployment.patch({"engine": {"image": OTHER_TAG}})
        self.deployment.wait_ready()

    def change_arguments(self) -> None:
        self._set_sequences(96)
        self.deployment.wait_ready()

    def revert_half_way(self) -> None:
        """Begin a change of every replica, and take it back when the first one has changed."""
        self._set_sequences(64)

        def has_begun() -> bool:
            status = self.deployment.get()["status"]
            return bool(0 < status.get("updatedReplicas", 0) < status.get("replicas", 0))

        self.deployment.wait(has_begun, "the first replica of the new revision")
        self._set_sequences(96)
        self.deployment.wait_ready()

    def bad_image(self) -> None:
        """An image that cannot be had: the old revision serves on, and a condition says why."""
        self.deployment.patch({"engine": {"image": "localhost/kvasir/not-there:1"}})
        degraded = self.deployment.wait_condition("Degraded", "True")
        assert "not-there" in degraded["message"], degraded
        assert self.deployment.get()["status"]["readyReplicas"] >= 2
        self.deployment.patch({"engine": {"image": OTHER_TAG}})
        self.deployment.wait_ready()

    def delete_pod(self) -> None:
        pod = self.deployment.pods()[0]["metadata"]["name"]
        self.deployment.kubectl(
            "-n", self.deployment.namespace, "delete", "pod", pod, "--wait=false"
        )
        self._wait_gone(pod)
        self.deployment.wait_ready()

    def kill_container(self) -> None:
        pod = self.deployment.pods()[0]
        status = pod["status"]["containerStatuses"][0]
        self.cluster.node(pod["spec"]["nodeName"]).kill_container(status["containerID"])

        def has_restarted() -> bool:
            name = pod["metadata"]["name"]
            now = {p["metadata"]["name"]: p for p in self.deployment.pods()}[name]
            return bool(
                now["status"]["containerStatuses"][0]["restartCount"] > status["restartCount"]
            )

        self.deployment.wait(has_restarted, "a restarted container")
        self.deployment.wait_ready()

    def drain_node(self) -> None:
        """Drain the node that has no router, and let it come back."""
        self._kubectl(
            *("drain", self.lost, "--ignore-daemonsets", "--delete-emptydir-data"),
            *("--force", "--timeout=240s"),
            timeout=300,
        )
        self.deployment.wait_ready()
        self._kubectl("uncordon", self.lost)

    def drain_single(self) -> None:
        """The same with one replica: its eviction is allowed, requests wait for the next one."""
        self._have_one()
        if self.deployment.pods()[0]["spec"]["nodeName"] != self.lost:
            self._kubectl("cordon", *self._others())
            self.delete_pod()
            self._kubectl("uncordon", *self._others())
        self.drain_node()

    def drain_single_late(self) -> None:
        """The same, where no eviction is allowed: the next one serves before the replica goes."""
        self.deployment.patch({"disruption": {"maxUnavailable": 0}})
        self._have_one()
        with PodWatch(self.cluster.kubectl.kubeconfig) as pods:
            # Where it is on another one, a cordon is enough for it to move.
            self._kubectl("cordon", *self._others())
            self._wait_alone(self.lost)
            self._kubectl("uncordon", *self._others())
            self.drain_node()
            self._wait_alone()
            lives = pods.seen(labels.ENGINE, self.deployment.name)
        for old, new in pairwise(lives):
            assert serves_since(new) <= asked_to_go(old), (new["status"], old["metadata"])
        self.deployment.patch({"disruption": None})
        self.deployment.wait_ready()

    def drain_three(self) -> None:
        self.deployment.scale(3)
        self.deployment.wait_ready(3)
        self.drain_node()

    def kill_operator(self) -> None:
        """SIGKILL to the operator in the middle of a change; its next life finishes it."""
        self._set_sequences(80)
        pod = self.release.pods("operator")[0]
        container = pod["status"]["containerStatuses"][0]["containerID"]
        self.cluster.node(pod["spec"]["nodeName"]).kill_container(container)
        self.deployment.wait_ready()

    def stop_apiserver(self) -> None:
        """The API server answers nobody for 30 s."""
        self.cluster.control_plane.pause_apiserver()
        time.sleep(OUTAGE_SECONDS)
        self.cluster.control_plane.resume_apiserver()
        wait_for("the API server", self.cluster.control_plane.is_ready, 60)
        self.deployment.wait_ready()

    def roll_routers(self) -> None:
        self._restart_routers()
        self.deployment.wait_ready()

    def upgrade_without_claims(self) -> None:
        """Do what the upgrade of a release without classes and claims does: routers of this version
        come while nothing is claimed, then the operator."""
        operator = self._component("operator")
        self._released("scale", operator, "--replicas=0")
        self.deployment.wait(lambda: not self.release.pods("operator"), "no operator")
        where = ("-n", self.deployment.namespace, "patch", "llmd", self.deployment.name)
        remove = '[{"op": "remove", "path": "/status/className"}]'
        self._kubectl(*where, "--subresource=status", "--type=json", "-p", remove)
        # The routers that know of this are those to take the claims from
        self._restart_routers()
        self._kubectl("delete", "modelnames", "--all")
        self._restart_routers()
        self._released("scale", operator, "--replicas=1")

        def is_claimed() -> bool:
            claims = self.deployment.kubectl.json("get", "modelnames")["items"]
            holders = {each["spec"]["claimedBy"]["name"] for each in claims}
            return self.deployment.name in holders

        self.deployment.wait(is_claimed, "a claim")
        self.deployment.wait_ready()

    def lose_node(self) -> None:
        """Power off the node without routers, wait for its pods' successors, power it on."""
        self.deployment.scale(2)
        self.deployment.wait_ready(2)
        nodes = {pod["spec"]["nodeName"] for pod in self.deployment.pods()}
        if len(nodes) == 1:
            # One engine on each node: with every engine lost at once a request has two deaths, and
            # is taken for their cause; with none lost nothing is shown.
            [node] = nodes
            self._kubectl("cordon", node)
            self.delete_pod()
            self._kubectl("uncordon", node)
        assert self.lost in {pod["spec"]["nodeName"] for pod in self.deployment.pods()}
        node = self.cluster.node(self.lost)
        node.power_off()
        self.cluster.wait_ready(node, ready=False)
        # The lost pods stay, Terminating, until their node says that they ended.
        self.deployment.wait(
            lambda: self.deployment.get()["status"]["readyReplicas"] == 2, "successors"
        )
        self.cluster.start_node(node)
        self.cluster.wait_ready(node)
        self.deployment.wait_ready()

    def _have_one(self) -> None:
        self.deployment.scale(1)
        self.deployment.wait_ready(1)
        self._wait_alone()

    def _wait_alone(self, node: str | None = None) -> None:
        """Return when there is one pod, which is on `node` where that is given."""

        def is_alone() -> bool:
            nodes = [pod["spec"].get("nodeName") for pod in self.deployment.pods(leaving=True)]
            return len(nodes) == 1 and node in (None, *nodes)

        self.deployment.wait(is_alone, f"one pod on {node or 'any node'}")

    def _others(self) -> list[str]:
        """The nodes that are not drained."""
        return [node.name for node in self.cluster.nodes if node.name != self.lost]

    def _set_sequences(self, count: int) -> None:
        self.deployment.patch({"engine": {"config": {"maxNumSeqs": count}}})

    def _restart_routers(self) -> None:
        name = self._component("router")
        self._released("rollout", "restart", name)
        self._released("rollout", "status", name, "--timeout=240s", timeout=300)

    def _component(self, component: str) -> str:
        """The Deployment of one of the release's components, as TYPE/NAME."""
        selector = f"kvasir.dev/component={component}"
        return self._released("get", "deployments", "-l", selector, "-o", "name").split()[0]

    def _released(self, *arguments: str, timeout: float = 120) -> str:
        """kubectl in the release's namespace."""
        return self._kubectl("-n", self.release.namespace, *arguments, timeout=timeout)

    def _wait_gone(self, pod: str) -> None:
        def is_gone() -> bool:
            return pod not in {p["metadata"]["name"] for p in self.deployment.pods()}

        self.deployment.wait(is_gone, f"the end of {pod}")

    def _kubectl(self, *arguments: str, timeout: float = 120) -> str:
        return self.deployment.kubectl(*arguments, timeout=timeout)


def every_step(stage: Stage) -> list[tuple[str, Callable[[], None]]]:
    """All of them, in an order in which each finds what it needs."""
    return [
        ("scale 1 to 4", stage.scale_up),
        ("scale 4 to 2", stage.scale_down),
        ("image change", stage.change_image),
        ("argument change", stage.change_arguments),
        ("revert half-way", stage.revert_half_way),
        ("bad image", stage.bad_image),
        ("pod delete", stage.delete_pod),
        ("container kill -9", stage.kill_container),
        ("operator kill -9", stage.kill_operator),
        ("API server stopped 30 s", stage.stop_apiserver),
        ("router rollout", stage.roll_routers),
        ("upgrade without claims", stage.upgrade_without_claims),
        ("node drain, 3 replicas", stage.drain_three),
        ("node drain, 1 replica", stage.drain_single),
        ("node drain, no eviction", stage.drain_single_late),
        ("node power loss", stage.lose_node),
    ]
