"""The upgrade of release 0.1.0 with models running, in both orders of definition and chart.

What that release's operator had written is played again (support/operators/recorded_release.py),
pods become what a kubelet would make them, and this version's operator runs with the flags and the
rights that its chart gives it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.helm import HelmError
from support.operators.new_router import NewRouter
from support.operators.operator_site import Operator, Routers, Site
from support.operators.recorded_release import PACKAGES, play, writes_of

from harness.control_plane import ControlPlane
from kvasir.cli.local.ports import free_ports
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir.kube.objects import Object, annotation, condition, label
from kvasir.resource import labels
from kvasir_operator import kinds
from kvasir_operator.controller.drift import APPLIED
from kvasir_operator.objects import status_manifest

pytestmark = pytest.mark.slow

RELEASE = "0.1.0"
OLD_CHART = PACKAGES / f"kvasir-{RELEASE}.tgz"
REGISTRY = {"global": {"imageRegistry": "registry.example.com/kvasir"}}
CRDS = ("llmdeployments.kvasir.dev", "llmdeploymentclasses.kvasir.dev", "modelnames.kvasir.dev")
MODEL_NAMES = {"cached", "plain", "scaled", "Org/Tuned", "tuned"}
NAMES = ("cached", "plain", "scaled", "tuned")
OWNED = (
    *(kinds.DEPLOYMENTS, kinds.SERVICES, kinds.ACCOUNTS, kinds.BUDGETS, kinds.NETWORK_POLICIES),
    *(kinds.SECRETS, kinds.CLAIMS, kinds.JOBS, kinds.AUTOSCALERS),
)
Objects = dict[tuple[str, str], Object]
Models = dict[str, Object]


class OldRelease:
    """Release 0.1.0 with models in a namespace, all of them serving."""

    def __init__(self, plane: ControlPlane, helm: Any, charts: Path, site: Site) -> None:
        self.plane = plane
        self.helm = helm
        self.charts = charts
        self.site = site
        self.namespace = plane.namespace("kvasir")
        self.applied: set[str] = set()
        """Hashes of the Deployments' manifests."""

    async def begin(self) -> None:
        site = self.site
        self.install(OLD_CHART)
        self.plane.kubectl("wait", "--for=condition=established", f"crd/{CRDS[0]}")
        await Site(site.cluster, self.namespace, site.router).start_router()
        await play(site.cluster, site.namespace, writes_of(RELEASE))
        found = await site.cluster.list(kinds.DEPLOYMENTS, site.namespace)
        self.applied = {annotation(each, APPLIED) for each in found}

        async def serve() -> bool:
            """Every gate as that release's operator had opened it, and no download at work."""
            pods = await site.engines()
            for pod in pods:
                if not condition(pod, labels.ROUTED):
                    now = {"type": labels.ROUTED, "status": "True", "lastTransitionTime": _THEN}
                    name = pod["metadata"]["name"]
                    status = {"conditions": [now]}
                    await site.cluster.merge_status(kinds.PODS, site.namespace, name, status)
            await site.finish_downloads()
            jobs = await site.cluster.list(kinds.JOBS, site.namespace)
            found = await site.cluster.list(kinds.DEPLOYMENTS, site.namespace)
            return all(_is_complete(each) for each in jobs) and sum(map(_ready, found)) == 5

        await site.eventually(serve, "the models to serve")

    def install(self, chart: Path) -> None:
        self.helm("install", "kvasir", chart, "--namespace", self.namespace, values=REGISTRY)

    def uninstall(self) -> None:
        self.helm("uninstall", "kvasir", "--namespace", self.namespace, "--ignore-not-found")

    def upgrade(self, *flags: str) -> None:
        """As docs/upgrading.md has it."""
        command = ("upgrade", "kvasir", self.charts / "kvasir", "--namespace", self.namespace)
        self.helm(*command, "--reset-then-reuse-values", *flags)

    def define(self) -> None:
        files = sorted((self.charts / "kvasir/files/crds").iterdir())
        self.plane.define("\n---\n".join(file.read_text() for file in files))

    async def objects(self) -> Objects:
        """Everything in the namespace that an operator has made, by kind and name."""
        return {
            (kind.plural, each["metadata"]["name"]): each
            for kind in OWNED
            for each in await self.site.cluster.list(
                kind, self.site.namespace, f"app.kubernetes.io/managed-by={labels.MANAGER}"
            )
        }

    async def models(self) -> Models:
        found = await self.site.cluster.list(kinds.LLMDEPLOYMENTS, self.site.namespace)
        return {each["metadata"]["name"]: each for each in found}

    async def pods(self) -> set[str]:
        return {each["metadata"]["uid"] for each in await self.site.engines()}

    async def until_taken(self, *names: str) -> None:
        """Wait until this version's operator has these models, and all pods are as it wants them:
        their Deployments are not those of the former release."""

        async def taken() -> bool:
            models = await self.models()
            made = await self.site.cluster.list(kinds.DEPLOYMENTS, self.site.namespace)
            made = [each for each in made if each["metadata"]["name"] in names]
            pods = [it for it in await self.site.engines() if label(it, labels.DEPLOYMENT) in names]
            return (
                all(_is_taken(models[it]) for it in names)
                and all(_ready(each) == each["spec"]["replicas"] for each in made)
                and not self.applied & {annotation(each, APPLIED) for each in made}
                and {_revision(it) for it in pods} == {_revision(_template(it)) for it in made}
            )

        await self.site.eventually(taken, f"{names} to be taken over")


def _is_taken(model: Object) -> bool:
    status = model["status"]
    return (
        status.get("className") == "kvasir"
        and status["observedGeneration"] == model["metadata"]["generation"]
        and condition(model, "Ready").get("reason") == "Serving"
    )


def _specs(objects: Objects) -> dict[tuple[str, str], Any]:
    """Return what a controller does not write of its own accord."""
    return {key: (it["metadata"]["uid"], it.get("spec")) for key, it in objects.items()}


def _template(deployment: Object) -> Object:
    found: Object = deployment["spec"]["template"]
    return found


def _changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two trees differ; named things are told apart by their names."""
    if all(isinstance(each, list) and _named(each) for each in (before, after)):
        before, after = ({each["name"]: each for each in it} for it in (before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from _changes(before.get(key), after.get(key), f"{path}/{key}".lstrip("/"))
    elif before != after:
        yield path


def _named(items: list[Any]) -> bool:
    return all(isinstance(each, dict) and "name" in each for each in items)


def _revision(it: Object) -> str:
    return str(it["metadata"]["labels"][labels.REVISION])


_THEN = "2026-01-01T00:00:00Z"


def _is_complete(job: Object) -> bool:
    return condition(job, "Complete").get("status") == "True"


def _ready(deployment: Object) -> int:
    return int((deployment.get("status") or {}).get("readyReplicas") or 0)


@pytest.fixture
async def old(plane: ControlPlane, cluster: Any, charts: Path) -> AsyncIterator[OldRelease]:
    routers = Routers()
    access = await load_access(environ={"KUBECONFIG": str(plane.kubeconfig)})
    async with Cluster(access, timeout=60) as client:
        made = OldRelease(plane, cluster, charts, Site(client, plane.namespace("models"), routers))
        await made.begin()
        yield made
    made.uninstall()
    plane.undefine(*CRDS)
    plane.kubectl("delete", "namespace", made.namespace, made.site.namespace, "--wait=false")
    routers.close()


@pytest.fixture
def operator(old: OldRelease, tmp_path: Path) -> Iterator[Any]:
    """operator(): the release's operator as its Deployment would run it, as a process."""
    made: list[Operator] = []

    def make() -> Operator:
        found = old.plane.kubectl.json("-n", old.namespace, "get", "deployment", "kvasir-operator")
        [container] = found["spec"]["template"]["spec"]["containers"]
        secret = tmp_path / "fleet-secret"
        secret.write_text("1" * 48)
        own = {
            "--fleet-secret-file": secret,
            "--metrics-port": free_ports(1)[0],
            "--resync-seconds": 1,
            "--lease-seconds": 30,
        }
        flags = [each for each in container["args"][1:] if each.partition("=")[0] not in own]
        flags += [f"{name}={value}" for name, value in own.items()]
        flags += ["--host=127.0.0.1", f"--router-admin-port={old.site.router.port}"]
        account = f"{old.namespace}/{found['spec']['template']['spec']['serviceAccountName']}"
        log = tmp_path / f"operator-{len(made)}.log"
        made.append(Operator(old.plane.kubeconfig_for(account), log, own["--metrics-port"], *flags))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        if each.process is not None and each.process.poll() is None:
            each.kill()
        print(each.log)


CHANGED_IN_PODS = {
    "metadata/annotations/cluster-autoscaler.kubernetes.io~safe-to-evict",
    "metadata/annotations/karpenter.sh~do-not-disrupt",
    "metadata/annotations/kvasir.dev~while-loading",
    "metadata/annotations/kvasir.dev~secrets",
    "metadata/labels/kvasir.dev~revision",
    "spec/containers/engine/args",
    "spec/containers/engine/env/KVASIR_FLEET_SECRET",
    "spec/containers/engine/livenessProbe/httpGet/path",
    "spec/containers/engine/volumeMounts/fleet",
    "spec/volumes/fleet",
}
"""What an engine is replaced for, beside its image: docs/upgrading.md says why. One thing more is
one for that page."""


def assert_nothing_is_lost(before: Objects, after: Objects, models: Models) -> None:
    """No object is another one, none is there twice, and each has its owner still."""
    assert before.keys() - after.keys() == {("horizontalpodautoscalers", "scaled")}
    new = {("networkpolicies", "cached-download"), ("secrets", "kvasir-fleet")}
    assert after.keys() - before.keys() == new
    for key, each in after.items():
        metadata = each["metadata"]
        if key in before:
            assert metadata["uid"] == before[key]["metadata"]["uid"], key
        owners = {it["uid"] for it in metadata.get("ownerReferences", ())}
        if key == ("secrets", "kvasir-fleet"):
            assert owners == {each["metadata"]["uid"] for each in models.values()}
        elif key == ("persistentvolumeclaims", "cached-models"):
            assert not owners, "its model shall stay"
        else:
            assert owners == {models[label(each, labels.DEPLOYMENT)]["metadata"]["uid"]}, key


async def distrust(old: OldRelease) -> None:
    """Write what that release's operator says as long as it works beside the new definition, whose
    defaults are fields that it does not know. It changes nothing else meanwhile."""
    for each in (await old.models()).values():
        conditions = [dict(it) for it in each["status"]["conditions"]]
        for told in conditions:
            if told["type"] in ("Accepted", "Ready"):
                told |= {"status": "False", "reason": "InvalidSpec", "message": "not a known field"}
        body = status_manifest(each, {**each["status"], "conditions": conditions})
        await old.site.cluster.apply(kinds.LLMDEPLOYMENTS, body, labels.MANAGER, "status")


async def test_definition_first(old: OldRelease, operator: Any) -> None:
    """Then chart and operator; a model that is paused stays as it is until it may be restarted."""
    site = old.site
    await site.edit(kinds.LLMDEPLOYMENTS, "tuned", {"spec": {"paused": True}})
    before, models, pods = await old.objects(), await old.models(), await old.pods()
    old.define()
    assert _specs(await old.objects()) == _specs(before)
    await distrust(old)
    router = NewRouter(old.plane, site.namespace, "kvasir")
    await site.eventually(router.knows, "the models of a new router")
    assert router.states == [MODEL_NAMES]

    old.upgrade()
    process = operator()
    await old.until_taken("cached", "plain", "scaled")
    held = (await old.objects())["deployments", "tuned"]
    assert held["spec"] == before["deployments", "tuned"]["spec"]
    await site.edit(kinds.LLMDEPLOYMENTS, "tuned", {"spec": {"paused": False}})
    await old.until_taken(*NAMES)
    after, now = await old.objects(), await old.models()
    assert_nothing_is_lost(before, after, models)
    for name in NAMES:
        templates = [_with_keys(_template(it["deployments", name])) for it in (before, after)]
        assert set(_changes(*templates)) == CHANGED_IN_PODS, name
    assert not pods & await old.pods()
    for name, each in models.items():
        assert now[name]["metadata"]["uid"] == each["metadata"]["uid"]
        assert condition(now[name], "Accepted")["reason"] == "Accepted"
    assert set(router.states[-1]) == MODEL_NAMES
    await router.stop()

    # Users go on with their files
    for write in writes_of(RELEASE):
        if write["manager"] == "user":
            body = write["body"]
            body["metadata"]["namespace"] = site.namespace
            body["spec"]["lifecycle"] = {"drainSeconds": 30}
            await site.cluster.apply(kinds.LLMDEPLOYMENTS, body, "user")
    await old.until_taken(*NAMES)
    edited = await old.objects()
    assert all("30" in str(_args(edited["deployments", name])) for name in NAMES)

    # Without an operator they serve on, and a new one takes them as they are
    pods = await old.pods()
    assert process.stop() == 0
    old.uninstall()
    old.install(old.charts / "kvasir")
    operator()
    await old.until_taken(*NAMES)
    assert (_specs(await old.objects()), await old.pods()) == (_specs(edited), pods)


async def test_chart_first(old: OldRelease, operator: Any) -> None:
    """An operator that finds the former definition writes nothing, until it has its own."""
    before, models, pods = await old.objects(), await old.models(), await old.pods()
    command = ("upgrade", "kvasir", old.charts / "kvasir", "--namespace", old.namespace)
    with pytest.raises(HelmError, match="nil pointer"):
        old.helm(*command, "--reuse-values")
    old.upgrade("--set", "crds.enabled=false")
    process = operator()

    async def waits() -> bool:
        return "llmdeploymentclasses.kvasir.dev" in process.log

    await old.site.eventually(waits, "an operator that waits for its definitions")
    assert _specs(await old.objects()) == _specs(before)
    assert (await old.models(), await old.pods()) == (models, pods)

    old.define()
    await old.until_taken(*NAMES)
    assert_nothing_is_lost(before, await old.objects(), models)
    accepted = condition((await old.models())["plain"], "Accepted")
    assert accepted["lastTransitionTime"] == _THEN, "the status goes on"


def _args(deployment: Object) -> list[str]:
    found: list[str] = _template(deployment)["spec"]["containers"][0]["args"]
    return found


def _with_keys(template: Object) -> Object:
    """Return the template with no slash in a key, where paths are told."""
    metadata = {
        part: {key.replace("/", "~"): value for key, value in pairs.items()}
        for part, pairs in template["metadata"].items()
        if pairs
    }
    return {**template, "metadata": metadata}
