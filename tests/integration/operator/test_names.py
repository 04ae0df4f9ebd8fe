"""Model names on a real control plane: whose they are, through races, restarts and restores."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.operators.operator_site import CHART

from harness.binaries import binary
from kvasir.kube import ApiError
from kvasir.kube.objects import condition
from kvasir.resource.crd_writer import as_yaml, crd
from kvasir.resource.ownership.model_name import claim_manifest
from kvasir.resource.ownership.name_claims import claim_object_name, read_claim
from kvasir_operator.kinds import LLMDEPLOYMENTS, MODEL_NAMES

pytestmark = pytest.mark.slow

TINY = {"uri": "builtin://kvasir-tiny"}
CHAT = {**TINY, "name": "Org/Chat"}


async def claim_of(site: Any, name: str = "Org/Chat") -> Any:
    """The claim to a name in the site's class; None where there is none."""
    live = await site.cluster.get(MODEL_NAMES, None, claim_object_name(site.namespace, name))
    return read_claim(live) if live is not None else None


async def until_holder(site: Any, holder: str, name: str = "Org/Chat") -> Any:
    async def check() -> Any:
        claim = await claim_of(site, name)
        return claim if claim is not None and claim.holder == (site.namespace, holder) else None

    return await site.eventually(check, f"{name} is {holder}'s")


async def until_free(site: Any, name: str = "Org/Chat") -> None:
    async def check() -> bool:
        return await claim_of(site, name) is None

    await site.eventually(check, f"{name} is free")


@pytest.mark.slow
async def test_of_many_that_want_a_name_at_once_one_gets_it(site: Any, start: Any) -> None:
    start()
    names = [f"m{number}" for number in range(8)]
    await asyncio.gather(*(site.apply(name, model=CHAT, replicas=0) for name in names))

    async def all_told() -> bool:
        found = [await site.condition("Accepted", name) for name in names]
        return all(status for status, _ in found)

    await site.eventually(all_told, "a verdict on each")
    told = {name: await site.condition("Accepted", name) for name in names}
    [winner] = [name for name, (status, _) in told.items() if status == "True"]
    claim = await claim_of(site)
    assert claim.holder == (site.namespace, winner)
    assert claim.holder_uid == (await site.get(name=winner))["metadata"]["uid"]
    for name in set(names) - {winner}:
        assert told[name] == ("False", "NameConflict")
        message = condition(await site.get(name=name), "Accepted")["message"]
        assert f"'Org/Chat' belongs to LLMDeployment {site.namespace}/{winner}" in message

    # It goes, and another one has the name at once
    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, winner)

    async def inherited() -> bool:
        claim = await claim_of(site)
        return claim is not None and claim.holder.name != winner

    await site.eventually(inherited, "an heir")
    heir = (await claim_of(site)).holder.name
    await site.until("Accepted", "True", "Accepted", name=heir)


@pytest.mark.slow
async def test_an_older_one_cannot_take_a_name_by_an_alias(site: Any, start: Any) -> None:
    operator = start()
    await site.apply("older", replicas=0)
    await site.until("Accepted", "True", name="older")
    await site.apply("victim", model=CHAT)
    await site.until("Ready", "True", name="victim")
    before = await claim_of(site)
    await site.apply("older", replicas=0, model={**TINY, "aliases": ["Org/Chat"]})
    await site.until("Degraded", "True", "NameConflict", name="older")
    # An operator that knows nothing of what was sees it the same way
    operator.kill()
    operator.start()
    await site.apply("older", replicas=1, model={**TINY, "aliases": ["Org/Chat"]})
    await site.until("Degraded", "True", "NameConflict", name="older")
    await site.until("Ready", "True", name="victim")
    assert await claim_of(site) == before


@pytest.mark.slow
async def test_a_restored_deployment_finds_its_name_kept(site: Any, start: Any) -> None:
    """Deleted and brought back while no operator ran, with another that wants its name."""
    operator = start()
    await site.apply("m", model=CHAT, replicas=0)
    await until_holder(site, "m")
    await site.apply("rival", model=CHAT, replicas=0)
    await site.until("Accepted", "False", "NameConflict", name="rival")
    operator.stop()
    old = (await claim_of(site)).holder_uid
    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, "m")
    await site.apply("m", model=CHAT, replicas=0)
    operator.start()
    await site.until("Accepted", "True", "Accepted")
    claim = await until_holder(site, "m")
    assert claim.holder_uid == (await site.get())["metadata"]["uid"] != old
    assert await site.condition("Accepted", "rival") == ("False", "NameConflict")


@pytest.mark.slow
async def test_a_claim_whose_deployment_went_unseen_is_released(site: Any, start: Any) -> None:
    operator = start("--restore-seconds", "3")
    await site.apply("m", model=CHAT, replicas=0)
    await until_holder(site, "m")
    operator.stop()
    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, "m")
    assert await claim_of(site) is not None
    operator.start()
    await until_free(site)
    # It can be claimed again, also under the same name
    made = await site.apply("m", model=CHAT, replicas=0)
    await until_holder(site, "m")
    assert (await claim_of(site)).holder_uid == made["metadata"]["uid"]


@pytest.mark.slow
async def test_a_name_given_up_is_free_when_no_engine_answers_to_it(site: Any, start: Any) -> None:
    start()
    await site.apply("m", model={**CHAT, "aliases": ["alias"]})
    await site.until("Ready", "True")
    await site.apply("rival", replicas=0, model=CHAT)
    await site.until("Accepted", "False", "NameConflict", name="rival")
    site.takes_pods = False
    await site.apply("m", model={**TINY, "name": "new", "aliases": ["alias"]})
    await until_holder(site, "m", "new")
    await site.until("WorkloadReady", "False", "RollingOut")
    for name in ("Org/Chat", "alias"):
        assert (await claim_of(site, name)).holder.name == "m", "old engines answer to it"
    site.takes_pods = True
    await site.until("Ready", "True")
    await until_holder(site, "rival")
    await site.until("Accepted", "True", "Accepted", name="rival")
    assert (await claim_of(site, "alias")).holder.name == "m"


@pytest.mark.slow
async def test_an_invalid_change_takes_no_name_away(site: Any, start: Any, plane: Any) -> None:
    """One that an API server with another definition has let in."""
    lenient = copy.deepcopy(crd())
    schema = lenient["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["model"]["x-kubernetes-validations"]
    invalid = {"spec": {"model": {"uri": "ftp://x", "name": "n"}}}

    async def let_in() -> bool:
        try:
            await site.edit(LLMDEPLOYMENTS, "m", invalid)
        except ApiError:
            return False
        return True

    start()
    await site.apply("m", model=CHAT, replicas=0)
    await until_holder(site, "m")
    plane.define(yaml.safe_dump(lenient))
    try:
        # A definition takes effect some time after it was changed
        await site.eventually(let_in, "the invalid change is let in")
        await site.until("Accepted", "False", "InvalidSpec")
        assert (await claim_of(site)).holder.name == "m"
        assert await claim_of(site, "n") is None
    finally:
        plane.define(as_yaml())


@pytest.mark.slow
async def test_names_from_before_there_were_claims_are_the_oldest_ones(
    site: Any, start: Any
) -> None:
    for name in ("zoe", "amy"):
        await site.apply(name, model=CHAT, replicas=0)
        await asyncio.sleep(1.1)  # creation times are in seconds
    start()
    await site.until("Accepted", "True", name="zoe")
    await site.until("Accepted", "False", "NameConflict", name="amy")
    assert (await claim_of(site)).holder.name == "zoe"


@pytest.fixture
def policy(site: Any, plane: Any) -> Iterator[None]:
    """The chart's admission policy for the site's class."""
    command = [binary("helm"), "template", site.namespace, CHART, "--namespace", site.namespace]
    command += ["--kube-version", "1.34.0", "--set", "global.imageRegistry=x"]
    command += ["--set", f"class.name={site.namespace}"]
    command += ["--set-json", f"watchNamespaces={json.dumps([site.namespace])}"]
    command += ["-s", "templates/admission.yaml"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    plane.apply(rendered)
    yield
    plane.kubectl("delete", "-f", "-", input=rendered)


@pytest.mark.slow
@pytest.mark.usefixtures("policy")
async def test_the_charts_policy_refuses_a_duplicate_at_once(site: Any, start: Any) -> None:
    async def refused(name: str, **spec: Any) -> str:
        try:
            await site.apply(name, replicas=0, **spec)
        except ApiError as error:
            return str(error)
        return ""

    start()
    await site.apply("early", replicas=0, model={**TINY, "aliases": ["also"]})
    await site.apply("m", model=CHAT, replicas=0)
    await until_holder(site, "m")
    await until_holder(site, "early", "also")
    # A policy takes effect some time after it was made; what is let in until then has the name
    others = (f"other{number}" for number in itertools.count())
    said = await site.eventually(lambda: refused(next(others), model=CHAT), "a refusal")
    assert f"model name Org/Chat belongs to LLMDeployment {site.namespace}/m;" in said
    alias = await refused("other", model={**TINY, "aliases": ["also"]})
    assert f"model name also belongs to LLMDeployment {site.namespace}/early;" in alias
    assert "belongs to" in await refused("early", model=CHAT)
    # The holder, other names and other classes
    assert await refused("m", model={**CHAT, "aliases": ["more"]}) == ""
    assert await refused("free", model={**TINY, "name": "Org/chat"}) == ""
    assert await refused("foreign", model=CHAT, className="other") == ""
    # A name that it has already is no reason to refuse another change, but for one of class
    assert await refused("foreign", model=CHAT, className="other", paused=True) == ""
    assert "belongs to" in await refused("foreign", model=CHAT, className=site.namespace)


@pytest.mark.slow
async def test_users_cannot_write_a_claim_that_lies(site: Any, start: Any) -> None:
    """Whoever may write ModelNames: an API server holds claims to what they were made as."""
    start()
    await site.apply("m", model=CHAT, replicas=0)
    claim = await until_holder(site, "m")
    for change in (
        {"claimedBy": {"name": "other"}},
        {"claimedBy": {"namespace": "other"}},
        {"name": "other"},
        {"className": "other"},
    ):
        with pytest.raises(ApiError, match=r"cannot change|does not change hands"):
            await site.cluster.merge(MODEL_NAMES, "", claim.object_name, {"spec": change})
    # One under a wrong name says nothing, and is in nobody's way
    made = claim_manifest(site.namespace, "free", claim.holder, "uid")
    made["metadata"]["name"] = f"{site.namespace}.odd"
    await site.cluster.create(MODEL_NAMES, made, "user")
    await site.apply("n", model={**TINY, "name": "free"}, replicas=0)
    await until_holder(site, "n", "free")
