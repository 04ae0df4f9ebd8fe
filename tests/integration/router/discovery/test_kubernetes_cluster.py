"""A router on a real API server, with a service account's rights and no others."""

import asyncio
import json
from typing import Any

import pytest

from kvasir.resource.crd_writer import as_yaml
from kvasir.resource.ownership.model_name import claim_manifest
from kvasir.resource.ownership.name_claims import Holder
from kvasir_router.admin.views import serving_view
from kvasir_router.options.cluster_scope import ClusterScope
from kvasir_router.options.router_settings import Probing, RouterSettings
from kvasir_router.process.client_port import listen
from kvasir_router.process.single_process import RouterServer

SECONDS = 60

RIGHTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: router, namespace: NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: router, namespace: NAMESPACE}
rules:
  - {apiGroups: [kvasir.dev], resources: [llmdeployments], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: router, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: router}
subjects: [{kind: ServiceAccount, name: router}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAMESPACE-names}
rules:
  - {apiGroups: [kvasir.dev], resources: [modelnames], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAMESPACE-names}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAMESPACE-names}
subjects: [{kind: ServiceAccount, name: router, namespace: NAMESPACE}]
---
apiVersion: kvasir.dev/v1alpha1
kind: LLMDeployment
metadata: {name: tiny, namespace: NAMESPACE}
spec:
  model: {uri: "builtin://kvasir-tiny", name: NAMESPACE-tiny, aliases: [NAMESPACE-alias]}
  router: {holdSeconds: 120}
"""

SECRET_KEY = {"secretRef": {"name": "s", "key": "k"}}
PROVIDER = "192.0.2.1"
"""An address that nobody has (RFC 5737)."""

READS_SECRET = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: router-secrets, namespace: NAMESPACE}
rules:
  - {apiGroups: [""], resources: [secrets], resourceNames: [s], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: router-secrets, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: router-secrets}
subjects: [{kind: ServiceAccount, name: router}]
"""


class Place:
    """A namespace on the cluster, where pods get the status that a kubelet would write."""

    def __init__(self, plane) -> None:
        self.plane = plane
        self.namespace = plane.namespace("router")
        self.model = f"{self.namespace}-tiny"

    async def kubectl(self, *arguments: str, content: object = None) -> str:
        given = None if content is None else json.dumps(content)
        command = ("-n", self.namespace, *arguments)
        return await asyncio.to_thread(self.plane.kubectl, *command, input=given)

    async def run_pod(self, name: str, port: int, labels: dict[str, str] | None = None) -> str:
        """Return its uid."""
        labels = labels or {"kvasir.dev/deployment": "tiny", "kvasir.dev/component": "engine"}
        container = {
            "name": "engine",
            "image": "x",
            "ports": [{"name": "http", "containerPort": port}],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            # A pod with a node is not removed before its kubelet says so.
            "spec": {"containers": [container], "nodeName": "nowhere"},
        }
        await self.kubectl("create", "-f", "-", content=pod)
        await self.write_status(name, restarts=0)
        return json.loads(await self.kubectl("get", "pod", name, "-o", "json"))["metadata"]["uid"]

    async def write_status(self, name: str, *, restarts: int) -> None:
        status = {
            "name": "engine",
            "image": "x",
            "imageID": "x",
            "ready": True,
            "started": True,
            "restartCount": restarts,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
        content = {
            "status": {
                "phase": "Running",
                "podIP": "127.0.0.1",
                "podIPs": [{"ip": "127.0.0.1"}],
                "containerStatuses": [status],
            }
        }
        patch = ("patch", "pod", name, "--subresource=status", "--type=merge", "-p")
        await self.kubectl(*patch, json.dumps(content))


@pytest.fixture
def place(control_plane):
    control_plane.define(as_yaml())
    place = Place(control_plane)
    control_plane.apply(RIGHTS.replace("NAMESPACE", place.namespace))
    holder = Holder(place.namespace, "tiny")
    for name in (place.model, f"{place.namespace}-alias"):
        claim = claim_manifest(place.namespace, name, holder, "uid")
        control_plane.apply(json.dumps(claim))
    return place


@pytest.fixture
async def router(place, monkeypatch):
    kubeconfig = place.plane.kubeconfig_for(f"{place.namespace}/router")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    settings = RouterSettings(
        scope=ClusterScope((place.namespace,), class_name=place.namespace),
        probing=Probing(interval=0.2, startup_interval=0.02),
        access_log=False,
        drain_timeout=0.1,
    )
    server: Any = RouterServer(settings)
    with listen("127.0.0.1", 0, "") as sock, listen("127.0.0.1", 0, "") as admin_sock:
        server.url, server.admin = (
            f"http://127.0.0.1:{each.getsockname()[1]}" for each in (sock, admin_sock)
        )
        await server.start(sock, admin_sock)
        yield server
        await server.stop()


async def test_a_router_follows_a_cluster(place, router, client, start_replica, eventually) -> None:
    async def serves(ids: list[str]) -> None:
        await eventually(lambda: serving_view(router.gateway)["serving"] == ids, SECONDS)
        told = (await client.get(f"{router.admin}/serving")).json()
        assert told == {"serving": ids, "problems": {}}

    async def ask(name: str = "tiny") -> int:
        body = {"model": f"{place.namespace}-{name}", "messages": []}
        return (await client.post(f"{router.url}/score", json=body, timeout=SECONDS)).status_code

    # A model without a pod: known, and waited for.
    await eventually(lambda: router.gateway.ready, SECONDS)
    assert (await client.get(f"{router.url}/ready")).status_code == 200
    waits = asyncio.create_task(ask())
    model = router.fleet.models[place.model]
    await eventually(lambda: router.gateway.queue.waiting(model) == 1, SECONDS)
    first = await start_replica()
    one = await place.run_pod("one", first.port)
    assert await waits == 200
    assert await ask("alias") == 200

    # A second pod; then the first is deleted, and gets nothing from then on.
    second = await start_replica()
    two = await place.run_pod("two", second.port)
    await serves(sorted([f"{one}/0", f"{two}/0"]))
    await place.kubectl("delete", "pod", "one", "--wait=false")
    await serves([f"{two}/0"])
    served = len(first.requests)
    assert [await ask() for _ in range(6)] == [200] * 6
    assert len(first.requests) == served

    # Its container is started again: it is another replica.
    await place.write_status("two", restarts=1)
    await serves([f"{two}/1"])

    # The API server dies and comes back; what happened meanwhile is seen.
    await asyncio.to_thread(place.plane.stop_apiserver)
    await eventually(lambda: b"discovery_good 0.0" in router.metrics.text(), SECONDS)
    assert await ask() == 200
    await asyncio.to_thread(place.plane.start_apiserver)
    await place.write_status("two", restarts=2)
    await serves([f"{two}/2"])
    await place.kubectl("delete", "llmd", "tiny")
    await eventually(lambda: place.model not in router.fleet.models, SECONDS)
    assert await ask() == 404


async def test_servers_of_others_and_their_keys(
    place, router, client, start_replica, eventually
) -> None:
    hosted = f"{place.namespace}-hosted"
    guest = await start_replica()
    url = {"url": "http://127.0.0.1:1/v1", "key": SECRET_KEY, "allowPlainKey": True}
    pods = {"matchLabels": {"app": "guest"}, "port": guest.port, "model": "own"}
    external = {"urls": [{**url, "url": f"http://{PROVIDER}/v1"}, url], "pods": pods}
    deployment = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "hosted"},
        "spec": {"model": {"name": hosted}, "external": external},
    }
    await place.kubectl("create", "-f", "-", content=deployment)
    holder = Holder(place.namespace, "hosted")
    place.plane.apply(json.dumps(claim_manifest(place.namespace, hosted, holder, "uid")))

    def upstreams() -> dict[str, str]:
        model = router.fleet.models.get(hosted)
        found = model.replicas.values() if model else ()
        return {each.spec.host: each.spec.upstream.problem for each in found}

    await eventually(lambda: "may not read Secret 's'" in upstreams().get(PROVIDER, ""), SECONDS)
    assert "router's own machine" in upstreams()["127.0.0.1"]
    await place.kubectl("create", "secret", "generic", "s", "--from-literal=k=sk-provider")
    place.plane.apply(READS_SECRET.replace("NAMESPACE", place.namespace))
    await eventually(lambda: upstreams().get(PROVIDER) == "", SECONDS)
    replicas = router.fleet.models[hosted].replicas.values()
    assert "sk-provider" in {each.spec.upstream.key for each in replicas}

    await place.run_pod("guest", guest.port, {"app": "guest"})
    await eventually(lambda: router.fleet.models[hosted].ready, SECONDS)
    body = {"model": hosted, "messages": []}
    answer = await client.post(f"{router.url}/v1/chat/completions", json=body, timeout=SECONDS)
    assert answer.status_code == 200
    assert json.loads(guest.requests[0].body)["model"] == "own"
