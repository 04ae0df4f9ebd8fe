"""Defaults and profiles of a class: edits, a class that is lost, and the chart's settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir.kube.objects import condition
from kvasir.resource import labels
from kvasir.resource.ownership.deployment_class import MADE_AGAIN
from kvasir_operator.kinds import CLASSES, CONFIG_MAPS, DEPLOYMENTS, EVENTS

pytestmark = pytest.mark.slow

GPU = "nvidia.com/gpu"
PROFILES = [{"name": "l4", "nodeSelector": {"gpu": "l4"}, "schedulerName": "default-scheduler"}]


async def edit_class(site: Any, spec: dict[str, Any] | None = None, **metadata: Any) -> None:
    body = {**({"spec": spec} if spec else {}), **({"metadata": metadata} if metadata else {})}
    await site.cluster.merge(CLASSES, "", site.namespace, body)


async def class_there(site: Any) -> Any:
    return await site.cluster.get(CLASSES, None, site.namespace)


async def fields(site: Any) -> dict[str, str]:
    status = (await site.get()).get("status") or {}
    return {it["field"]: it["value"] for it in (status.get("inherited") or {}).get("fields", ())}


async def template(site: Any) -> Any:
    found = await site.cluster.get(DEPLOYMENTS, site.namespace, "m")
    return found["spec"]["template"] if found is not None else None


async def revision(site: Any) -> str:
    return str((await template(site))["metadata"]["labels"][labels.REVISION])


async def test_an_edit_of_the_class_reaches_engines_and_is_told(site: Any, start: Any) -> None:
    start()
    await site.eventually(lambda: class_there(site), "the class")
    await edit_class(site, {"profiles": PROFILES})
    await site.apply(profile="l4")
    await site.until("Ready", "True")
    assert (await template(site))["spec"]["nodeSelector"] == {"gpu": "l4"}
    assert await fields(site) == {
        "spec.podTemplate.nodeSelector[gpu]": "l4",
        "spec.podTemplate.schedulerName": "default-scheduler",
    }
    assert (await site.get())["spec"].get("podTemplate", {}).get("nodeSelector") is None
    before = await revision(site)

    await edit_class(site, {"defaults": {"hubEndpoint": "https://hub.example"}})

    async def told(word: str) -> str:
        events = await site.cluster.list(EVENTS, site.namespace)
        found = [it["message"] for it in events if it["reason"] == "ClassChanged"]
        return next((it for it in found if word in it), "")

    said = await site.eventually(lambda: told("hubEndpoint"), "an event")
    assert said.endswith("No engine is restarted.")
    assert await revision(site) == before
    await edit_class(site, {"profiles": [{"name": "l4", "nodeSelector": {"gpu": "l40s"}}]})
    said = await site.eventually(lambda: told("nodeSelector[gpu]: l4 is l40s now"), "an event")
    assert said.endswith("Engines are replaced by the rollout.")

    async def follows() -> bool:
        return bool((await template(site))["spec"]["nodeSelector"] == {"gpu": "l40s"})

    await site.eventually(follows, "the new node selector")
    await site.until("Ready", "True")
    now = await revision(site)
    await edit_class(site, {"profiles": []})
    await site.until("Accepted", "False", "ProfileMissing")
    assert await revision(site) == now


async def test_a_class_that_is_deleted_comes_back_as_it_was(site: Any, start: Any) -> None:
    first = start()
    await site.eventually(lambda: class_there(site), "the class")
    await edit_class(site, {"profiles": PROFILES})
    await site.apply(profile="l4")
    await site.until("Ready", "True")
    before, old = await revision(site), await class_there(site)
    await site.cluster.delete(CLASSES, "", site.namespace)

    async def back() -> bool:
        found = await class_there(site)
        return found is not None and found["metadata"]["uid"] != old["metadata"]["uid"]

    await site.eventually(back, "the class again")
    new = await class_there(site)
    assert new["spec"] == old["spec"]
    assert MADE_AGAIN not in new["metadata"]["annotations"]
    assert await revision(site) == before

    # Lost while no operator runs, nobody knows what it gave
    first.kill()
    await site.cluster.delete(CLASSES, "", site.namespace)
    await edit_llmdeployment(site)
    first.start()
    await site.until("Accepted", "False", "ProfileMissing")
    assert (await class_there(site))["metadata"]["annotations"][MADE_AGAIN] == "true"
    assert await revision(site) == before
    assert await fields(site)


async def edit_llmdeployment(site: Any) -> None:
    await site.apply(profile="l4", podTemplate={"labels": {"new": "one"}})


async def test_a_class_lost_with_its_defaults_restarts_nothing(site: Any, start: Any) -> None:
    operator = start()
    await site.eventually(lambda: class_there(site), "the class")
    await edit_class(site, {"profiles": PROFILES, "defaults": {"profile": "l4"}})
    await site.apply()
    await site.until("Ready", "True")
    before = await revision(site)
    operator.kill()
    await site.cluster.delete(CLASSES, "", site.namespace)
    operator.start()
    await site.until("Accepted", "False", "ClassReplaced")
    assert MADE_AGAIN in condition(await site.get(), "Accepted")["message"]
    assert await revision(site) == before
    await edit_class(site, annotations={MADE_AGAIN: None})
    await site.until("Ready", "True")
    assert await revision(site) != before
    assert await fields(site) == {}


async def test_the_charts_settings_and_the_users_stand_side_by_side(site: Any, start: Any) -> None:
    settings = {
        "defaults": {"caBundle": {"configMapRef": {"name": "corporate"}}},
        "profiles": PROFILES,
    }
    operator = start("--class-settings", json.dumps(settings))
    await site.eventually(lambda: class_there(site), "the class")
    own = [*PROFILES, {"name": "own"}]
    await edit_class(site, {"profiles": own, "defaults": {"hubEndpoint": "https://hub.example"}})
    await site.apply(profile="own")
    await site.until("Accepted", "False", "CABundleMissing")
    told = condition(await site.get(), "Accepted")["message"]
    assert told.startswith(f"ConfigMap 'corporate' does not exist in namespace {site.namespace}")
    assert await template(site) is None

    metadata = {"name": "corporate", "namespace": site.namespace}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": "x"}}
    await site.cluster.create(CONFIG_MAPS, made, "test")
    await site.apply(profile="own", podTemplate={"labels": {"look": "again"}})
    await site.until("Ready", "True")
    assert set(await fields(site)) == {"defaults.caBundle", "defaults.hubEndpoint"}
    assert operator.stop() == 0

    # Without them it keeps what is the user's
    start()

    async def alone() -> bool:
        spec = (await class_there(site))["spec"]
        return "caBundle" not in spec["defaults"]

    await site.eventually(alone, "the end of the chart's settings")
    spec = (await class_there(site))["spec"]
    assert spec["defaults"]["hubEndpoint"] == "https://hub.example"
    assert "own" in {each["name"] for each in spec["profiles"]}
