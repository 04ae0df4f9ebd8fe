"""Two releases in one cluster: each serves the LLMDeployments of its class, and writes no other."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.operators.operator_site import ACCOUNT

from kvasir.kube.objects import condition, name_of
from kvasir.resource.ownership.name_claims import claim_object_name
from kvasir_operator.kinds import (
    ACCOUNTS,
    BUDGETS,
    CLASSES,
    DEPLOYMENTS,
    LLMDEPLOYMENTS,
    MODEL_NAMES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
)

pytestmark = pytest.mark.slow

KINDS = (LLMDEPLOYMENTS, DEPLOYMENTS, SERVICES, BUDGETS, NETWORK_POLICIES, ACCOUNTS, PODS, SECRETS)


@pytest.fixture
def release(site: Any, operators: Any) -> Callable[..., Any]:
    """release(name, *flags): the operator of a release whose class is NAMESPACE-name, at work."""

    def begin(name: str, *flags: str) -> Any:
        made = operators(
            *("--watch-namespace", site.namespace, "--router-namespace", site.namespace),
            *("--router-admin-port", str(site.router.port)),
            *("--lease-name", f"{site.namespace}-{name}"),
            *("--class-name", f"{site.namespace}-{name}"),
            *flags,
        )
        made.start()
        return made

    return begin


async def everything(site: Any) -> dict[str, tuple[str, list[str]]]:
    """Version, and field managers, of all objects that operators make or write."""
    found = {}
    for kind in KINDS:
        for it in await site.cluster.list(kind, site.namespace):
            metadata = it["metadata"]
            managers = [each["manager"] for each in metadata.get("managedFields") or ()]
            found[f"{kind.plural}/{name_of(it)}"] = (metadata["resourceVersion"], managers)
    return found


async def looked(site: Any, *operators: Any) -> None:
    """Wait until each operator has looked at everything three times more."""
    goals = [each.metric("kvasir_operator_reconciles_total") + 6 for each in operators]

    async def reached() -> bool:
        now = [each.metric("kvasir_operator_reconciles_total") for each in operators]
        return all(map(operator.ge, now, goals))

    await site.eventually(reached, "more looks")


async def claimed(site: Any, release: str, name: str) -> bool:
    object_name = claim_object_name(f"{site.namespace}-{release}", name)
    return await site.cluster.get(MODEL_NAMES, None, object_name) is not None


@pytest.mark.slow
async def test_two_operators_never_write_the_same_object(
    site: Any, release: Any, plane: Any, tmp_path: Path
) -> None:
    here = ("-n", site.namespace, "create")
    account = f"--serviceaccount={ACCOUNT.replace('/', ':')}"
    plane.kubectl(*here, "role", "fleet", "--verb=get,create,patch", "--resource=secrets")
    plane.kubectl(*here, "rolebinding", "fleet", "--role=fleet", account)
    first = release("a", *fleet(tmp_path, "a"))
    await site.eventually(lambda: exists(site, "a"), "the first class")
    second = release("b", *fleet(tmp_path, "b"))
    other = f"{site.namespace}-b"
    await site.apply("mine", model={"uri": "builtin://kvasir-tiny", "name": "chat"})
    await site.apply(
        "theirs", className=other, model={"uri": "builtin://kvasir-tiny", "name": "chat"}
    )
    await site.until("Ready", "True", name="mine")
    await site.until("Ready", "True", name="theirs")
    assert (await site.get(name="mine"))["status"]["className"] == f"{site.namespace}-a"
    assert (await site.get(name="theirs"))["status"]["className"] == other
    # The same name in both: each release has routers of its own
    assert await claimed(site, "a", "chat")
    assert await claimed(site, "b", "chat")

    await looked(site, first, second)
    before = await everything(site)
    writes = [each.metric("kvasir_operator_api_writes_total") for each in (first, second)]
    await looked(site, first, second)
    assert await everything(site) == before
    assert writes == [each.metric("kvasir_operator_api_writes_total") for each in (first, second)]

    # With one of them away, the other leaves its objects alone whatever becomes of them
    second.kill()
    await site.edit(LLMDEPLOYMENTS, "theirs", {"spec": {"replicas": 2}})
    await site.cluster.delete(SERVICES, site.namespace, "theirs")
    left = {key: it for key, it in (await everything(site)).items() if key.endswith("/theirs")}
    await looked(site, first)
    now = await everything(site)
    assert {key: it for key, it in now.items() if key.endswith("/theirs")} == left
    assert "services/theirs" not in now


@pytest.mark.slow
async def test_an_llmdeployment_moves_when_its_operator_lets_go(site: Any, release: Any) -> None:
    first = release("a")
    await site.eventually(lambda: exists(site, "a"), "the first class")
    second = release("b")
    await site.eventually(lambda: exists(site, "b"), "the second class")
    await site.apply()
    await site.until("Ready", "True")
    # A class that does not exist takes nothing away
    await site.apply(className="nobody")
    await looked(site, first, second)
    await site.until("Ready", "True")
    assert (await site.get())["status"]["className"] == f"{site.namespace}-a"
    assert await claimed(site, "a", "m")
    first.kill()
    await site.apply(className=f"{site.namespace}-b")
    await looked(site, second)
    resource = await site.get()
    assert resource["status"]["className"] == f"{site.namespace}-a", "it is still the first one's"
    first.start()

    async def moved() -> bool:
        status = (await site.get())["status"]
        return bool(status.get("className") == f"{site.namespace}-b")

    await site.eventually(moved, "the second one's")
    await site.until("Ready", "True")
    assert await claimed(site, "b", "m")
    assert not await claimed(site, "a", "m")


@pytest.mark.slow
async def test_what_was_a_removed_releases_goes_to_the_default(site: Any, release: Any) -> None:
    first = release("a")
    await site.apply()
    await site.until("Ready", "True")
    second = release("b")
    await site.eventually(lambda: exists(site, "b"), "the second class")
    await looked(site, second)
    assert (await site.get())["status"]["className"] == f"{site.namespace}-a"
    assert first.stop() == 0
    await site.cluster.delete(CLASSES, "", f"{site.namespace}-a")

    async def moved() -> bool:
        return bool((await site.get())["status"].get("className") == f"{site.namespace}-b")

    await site.eventually(moved, "the second one's")
    await site.until("Ready", "True")


@pytest.mark.slow
async def test_a_class_is_one_operators_and_comes_back(site: Any, release: Any) -> None:
    first = release("a")
    await site.eventually(lambda: exists(site, "a"), "the class")
    intruder = release("b", "--class-name", f"{site.namespace}-a")

    async def ended() -> bool:
        return intruder.process.poll() is not None

    await site.eventually(ended, "the end of the second process")
    assert intruder.process.returncode == 1
    said = f"kvasir operator: LLMDeploymentClass {site.namespace}-a is served by kvasir.dev/"
    assert said in intruder.log
    assert "Traceback" not in intruder.log
    await site.cluster.delete(CLASSES, "", f"{site.namespace}-a")
    await site.eventually(lambda: exists(site, "a"), "the class again")
    await site.apply()
    await site.until("Ready", "True")
    assert first.stop() == 0


@pytest.mark.slow
async def test_a_class_goes_with_its_release(site: Any, release: Any, plane: Any) -> None:
    """It is owned by a ClusterRole of the release; what helm uninstall takes, takes it too, and the
    operator, still there, does not make it again."""
    role = f"{site.namespace}-release"
    rules = ("--verb=get", "--resource=clusterroles.rbac.authorization.k8s.io")
    plane.kubectl("create", "clusterrole", role, *rules, f"--resource-name={role}")
    account = f"--serviceaccount={ACCOUNT.replace('/', ':')}"
    plane.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)
    first = release("a", "--class-owner", role)
    await site.eventually(lambda: exists(site, "a"), "the class")
    await site.apply()
    await site.until("Ready", "True")
    plane.kubectl("delete", "clusterrole", role)

    async def gone() -> bool:
        return not await exists(site, "a")

    await site.eventually(gone, "the end of the class")
    await looked(site, first)
    assert not await exists(site, "a")
    # What it has taken, it serves until it ends
    assert await site.condition("Ready") == ("True", "Serving")
    assert first.stop() == 0
    plane.kubectl("delete", "clusterrolebinding", role)


async def exists(site: Any, release: str) -> bool:
    return await site.cluster.get(CLASSES, None, f"{site.namespace}-{release}") is not None


def fleet(directory: Path, release: str) -> tuple[str, ...]:
    """Flags of a fleet with a secret of its own."""
    path = directory / f"secret-{release}"
    path.write_text(release * 32)
    return ("--fleet-secret-file", str(path), "--fleet-secret-copy", f"fleet-{release}")


@pytest.mark.slow
async def test_what_nobody_serves_is_told_by_one(site: Any, release: Any) -> None:
    default, other = f"{site.namespace}-a", f"{site.namespace}-b"
    missing = f"{site.namespace}-c"

    async def message(name: str) -> str:
        found = condition(await site.get(name=name), "Ready")
        return str(found["message"]) if found.get("reason") == "NotServed" else ""

    second = release("b", "--no-default-class")
    await site.apply("nameless", replicas=0)
    said = await site.eventually(lambda: message("nameless"), "that nobody serves it")
    assert f"No LLMDeploymentClass is the default of namespace {site.namespace}" in said
    assert f"set spec.className to {other}" in said

    first = release("a")
    await site.until("WorkloadReady", "True", name="nameless")
    assert await message("nameless") == ""
    await site.apply("typo", replicas=0, className=missing)
    said = await site.eventually(lambda: message("typo"), "that nobody serves it")
    assert said.startswith(f"spec.className is {missing}, and no such LLMDeploymentClass exists")
    assert f"set spec.className to {default} or {other}" in said
    # Until both know of both classes, each of them may take itself for the one that tells.
    await looked(site, first, second)
    before = await site.get(name="typo")
    await looked(site, first, second)
    assert await site.get(name="typo") == before
    # The class comes after all
    release("c", "--no-default-class")
    await site.until("WorkloadReady", "True", name="typo")
    assert (await site.get(name="typo"))["status"]["className"] == missing
    assert await message("typo") == ""
    # One that is served is served on
    await site.apply("nameless", replicas=0, className=f"{site.namespace}-d")
    await site.until("Accepted", "True", "NotServed", name="nameless")
    told = condition(await site.get(name="nameless"), "Accepted")["message"]
    assert f"Until then class {default}, which has taken it, goes on serving it." in told
