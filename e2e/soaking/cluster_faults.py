"""Faults that happen to the cluster under the soak; each returns when it is over."""

from __future__ import annotations

import base64
import functools
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from soaking.load import Keys
from soaking.sampling import lives
from soaking.schedule import Kind

from harness import network
from harness.cluster import Cluster
from harness.commands import run, wait_for
from harness.errors import HarnessError
from harness.proof.deployment import Deployment
from harness.proof.release import Release
from harness.proof.steps import OTHER_TAG

KINDS = (
    Kind("engine container kill -9", "death"),
    Kind("engine core kill -9", "death"),
    Kind("engine stopped (SIGSTOP)", "death"),
    Kind("engine core stopped (SIGSTOP)", "death"),
    Kind("engine pod deleted at once", "death"),
    Kind("node cut off", "death"),
    Kind("engine pod deleted", "engines"),
    Kind("new spec", "engines"),
    Kind("one replica more, and back", "engines"),
    Kind("node drained, uncordoned", "nodes"),
    Kind("router kill -9", "routers"),
    Kind("router pod deleted at once", "routers"),
    Kind("router pod deleted", "routers"),
    # So that its last life is long enough to judge: without the API server it loses its Lease
    Kind("operator kill -9", "operator", until=0.3),
    Kind("API server kill -9, started again", "cluster", until=0.35),
    Kind("API server stopped (SIGSTOP)", "cluster", until=0.35),
    Kind("DNS stopped (SIGSTOP)", "cluster"),
    Kind("an API key replaced", "keys"),
)
OTHER_NODE = "n2"
"""The node without routers and operator."""
INSIST_SECONDS = 120.0
"""The API server may be away for a while, by another fault."""
SETTLE_SECONDS = 240.0

Result = TypeVar("Result")


class NotNowError(Exception):
    """There is nothing now that the fault could happen to."""


def insist(action: Callable[[], Result], seconds: float = INSIST_SECONDS) -> Result:
    """Do something that needs the API server, until it works."""
    end = time.monotonic() + seconds
    while True:
        try:
            return action()
        except HarnessError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


class Faults:
    """Faults of `deployment` (its engines), routers, operator, nodes and control plane. The router
    whose UID is `spared` is left alone, so that one has a long life.
    """

    def __init__(
        self,
        cluster: Cluster,
        release: Release,
        deployment: Deployment,
        spared: str,
        keys: Keys,
        router_killed: Callable[[float], None],
        seed: int,
    ) -> None:
        self._cluster = cluster
        self._release = release
        self._deployment = deployment
        self._spared = spared
        self._keys = keys
        self._previous_key = keys.current
        self._router_killed = router_killed
        self._random = random.Random(seed)
        self._specs = threading.Lock()
        self._by_name: dict[str, Callable[[], None]] = {
            "engine container kill -9": self._kill_engine,
            "engine core kill -9": self._kill_core,
            "engine stopped (SIGSTOP)": self._stop_engine,
            "engine core stopped (SIGSTOP)": self._stop_core,
            "engine pod deleted at once": lambda: self._delete(self._engine(), at_once=True),
            "node cut off": self._cut_node_off,
            "engine pod deleted": lambda: self._delete(self._engine(), at_once=False),
            "new spec": self._change_spec,
            "one replica more, and back": self._scale,
            "node drained, uncordoned": self._drain,
            "router kill -9": self._kill_router,
            "router pod deleted at once": self._delete_router_at_once,
            "router pod deleted": lambda: self._delete(self._router(), at_once=False),
            "operator kill -9": self._kill_operator,
            "API server kill -9, started again": self._restart_apiserver,
            "API server stopped (SIGSTOP)": self._stop_apiserver,
            "DNS stopped (SIGSTOP)": self._stop_dns,
            "an API key replaced": self._replace_key,
        }

    def inject(self, name: str) -> None:
        """Let it happen; returns when it is over. Raises NotNowError, or HarnessError."""
        self._by_name[name]()

    def engines_ready(self) -> bool:
        """Return True if two engines serve: requests have somewhere to go."""
        with suppress(HarnessError):
            return len([each for each in self._deployment.pods() if _is_running(each)]) >= 2
        return False

    def _kill_engine(self) -> None:
        pod = self._engine()
        self._node_of(pod).kill_container(_container(pod))

    def _kill_core(self) -> None:
        _signal(self._processes(self._engine(), "engine core"), signal.SIGKILL)

    def _stop_engine(self) -> None:
        self._stop_for_a_while(self._processes(self._engine()), 2, 8)

    def _stop_core(self) -> None:
        self._stop_for_a_while(self._processes(self._engine(), "engine core"), 2, 8)

    def _cut_node_off(self) -> None:
        """A node's cable is pulled for some seconds; engines have to be on another one, too."""
        if not any(p["spec"]["nodeName"] != OTHER_NODE for p in self._ready_engines()):
            raise NotNowError
        cable = network.interface(self._cluster.node(OTHER_NODE).index)
        run("ip", "link", "set", cable, "down")
        try:
            time.sleep(self._random.uniform(1, 4))
        finally:
            run("ip", "link", "set", cable, "up")

    def _change_spec(self) -> None:
        with self._specs:
            now = insist(self._deployment.get)["spec"]["engine"]
            if self._random.random() < 0.3:
                image = None if now.get("image") else OTHER_TAG
                insist(lambda: self._deployment.patch({"engine": {"image": image}}))
            else:
                counts = {64, 80, 96, 112} - {now["config"]["maxNumSeqs"]}
                config = {"maxNumSeqs": self._random.choice(sorted(counts))}
                insist(lambda: self._deployment.patch({"engine": {"config": config}}))
            self._settle()

    def _scale(self) -> None:
        with self._specs:
            replicas = int(insist(self._deployment.get)["spec"]["replicas"])
            for count in (replicas + 1, replicas):
                insist(functools.partial(self._deployment.scale, count))
                self._settle()

    def _drain(self) -> None:
        drain = ("drain", OTHER_NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force")
        kubectl = self._cluster.kubectl
        try:
            insist(lambda: kubectl(*drain, f"--timeout={SETTLE_SECONDS:.0f}s", timeout=300))
        finally:
            insist(lambda: kubectl("uncordon", OTHER_NODE))

    def _kill_router(self) -> None:
        pod = self._router()
        node = self._node_of(pod)
        self._router_killed(time.monotonic())
        node.kill_container(_container(pod))
        self._router_killed(time.monotonic())

    def _delete_router_at_once(self) -> None:
        pod = self._router()
        self._router_killed(time.monotonic())
        self._delete(pod, at_once=True)
        self._router_killed(time.monotonic())

    def _kill_operator(self) -> None:
        for pod in insist(lambda: self._release.pods("operator")):
            if _is_running(pod):
                self._node_of(pod).kill_container(_container(pod))
                return
        raise NotNowError

    def _restart_apiserver(self) -> None:
        self._cluster.control_plane.restart_apiserver()

    def _stop_apiserver(self) -> None:
        plane = self._cluster.control_plane
        plane.pause_apiserver()
        try:
            time.sleep(self._random.uniform(2, 12))
        finally:
            plane.resume_apiserver()
        wait_for("the API server", plane.is_ready, 60)

    def _stop_dns(self) -> None:
        process = self._cluster.processes.find("coredns")
        assert process is not None
        process.signal(signal.SIGSTOP)
        try:
            time.sleep(self._random.uniform(2, 12))
        finally:
            process.signal(signal.SIGCONT)

    def _replace_key(self) -> None:
        """A new key beside the one that is in use; once all routers know it, clients use it. The
        one before goes with it, and has to be refused."""
        gone, old = self._previous_key, self._keys.current
        new = f"kv-soak-{self._random.getrandbits(128):032x}"
        entries = [*self._keys.lasting, old, new]
        write_keys(self._release, entries)
        wait_for("routers that know the new key", lambda: self._all_routers(new, 200), 180, 1.0)
        self._keys.current, self._previous_key = new, old
        if gone != old:
            wait_for("routers that refuse the old key", lambda: self._all_routers(gone, 401), 30)

    def _all_routers(self, key: str, wanted: int) -> bool:
        with suppress(HarnessError):
            pods = [each for each in self._release.pods("router") if _is_running(each)]
            return bool(pods) and all(_status(each, key) == wanted for each in pods)
        return False

    def _settle(self) -> None:
        """Wait for a Ready deployment, but not for ever: other faults go on."""
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            with suppress(HarnessError):
                if self._deployment.is_ready():
                    return
            time.sleep(1)

    def _ready_engines(self) -> list[dict[str, Any]]:
        return [each for each in insist(self._deployment.pods) if _is_running(each)]

    def _engine(self) -> dict[str, Any]:
        """An engine pod that serves, if another one does, too."""
        pods = self._ready_engines()
        if len(pods) < 2:
            raise NotNowError
        return self._random.choice(pods)

    def _router(self) -> dict[str, Any]:
        found = insist(lambda: self._release.pods("router"))
        pods = [each for each in found if _is_running(each)]
        others = [each for each in pods if each["metadata"]["uid"] != self._spared]
        if not others:
            raise NotNowError
        return self._random.choice(others)

    def _delete(self, pod: dict[str, Any], *, at_once: bool) -> None:
        options = ("--grace-period=0", "--force") if at_once else ()
        where = ("-n", pod["metadata"]["namespace"])
        name = pod["metadata"]["name"]
        delete = (*where, "delete", "pod", name, "--ignore-not-found", "--wait=false", *options)
        insist(lambda: self._cluster.kubectl(*delete))

    def _node_of(self, pod: dict[str, Any]) -> Any:
        return self._cluster.node(pod["spec"]["nodeName"])

    def _processes(self, pod: dict[str, Any], role: str | None = None) -> list[int]:
        container = _container(pod).removeprefix("containerd://")
        found = [
            each.pid
            for each in lives()
            if each.container == container and role in (None, each.role)
        ]
        if not found:
            raise NotNowError
        return found

    def _stop_for_a_while(self, pids: list[int], low: float, high: float) -> None:
        _signal(pids, signal.SIGSTOP)
        try:
            time.sleep(self._random.uniform(low, high))
        finally:
            _signal(pids, signal.SIGCONT)


def write_keys(release: Release, keys: list[str]) -> None:
    """Make these the API keys of the release."""
    entries = "".join(
        f"  - {{id: soak-{zlib.crc32(key.encode()):08x}, key: {key}}}\n" for key in keys
    )
    encoded = base64.b64encode(f"keys:\n{entries}".encode()).decode()
    change = json.dumps({"data": {"keys.yaml": encoded}})
    secret = f"{release.name}-keys"
    insist(
        lambda: release.kubectl(
            *("-n", release.namespace, "patch", "secret", secret, "--type=merge", "-p", change)
        )
    )


def _status(pod: dict[str, Any], key: str) -> int:
    """Status of a list of models with the key, asked of one router; 0 where none came."""
    request = urllib.request.Request(
        f"http://{pod['status']['podIP']}:8080/v1/models",
        headers={"Authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def _container(pod: dict[str, Any]) -> str:
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def _is_running(pod: dict[str, Any]) -> bool:
    """Return True if its container runs and is ready."""
    return any(each["ready"] for each in pod["status"].get("containerStatuses", ()))


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
