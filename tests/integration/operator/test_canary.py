"""A canary on a real API server, by samples that a router makes up."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.kube.objects import label
from kvasir.resource import labels
from kvasir.wire.canary_samples import CanarySamples, RevisionSamples
from kvasir_operator.kinds import DEPLOYMENTS, EVENTS, LLMDEPLOYMENTS
from kvasir_operator.plan.canary.canary_workload import canary_name

pytestmark = pytest.mark.slow

CANARY = {
    "steps": [{"weight": 10}, {"weight": 50}],
    "analysis": {"minSamples": 50, "minSeconds": 0},
}
SPEC = {"replicas": 2, "rollout": {"canary": CANARY}}
NEW = {"args": ["--no-overlap"]}


async def rollout(site: Any) -> dict[str, Any]:
    return dict(((await site.get()).get("status") or {}).get("rollout") or {})


async def phase(site: Any, wanted: str, step: int = 1) -> dict[str, Any]:
    """Wait until the canary is in that phase of that step."""

    async def has() -> dict[str, Any] | None:
        found = await rollout(site)
        return found if (found.get("phase"), found.get("step")) == (wanted, step) else None

    return dict(await site.eventually(has, f"{wanted} at step {step}"))


async def count(site: Any, **canary: int) -> None:
    """The router counts under the split that there is now."""
    split = (await rollout(site))["split"]["id"]
    samples = CanarySamples(split, RevisionSamples(**canary), RevisionSamples(answers=900))
    site.router.canaries = {"m": samples.report()}


async def engines(site: Any, *, canary: bool) -> set[str]:
    return {
        pod["metadata"]["uid"]
        for pod in await site.engines()
        if bool(label(pod, labels.TRACK)) is canary and not pod["metadata"].get("deletionTimestamp")
    }


async def events(site: Any) -> list[str]:
    fields = "involvedObject.kind=LLMDeployment"
    return [
        each["reason"] for each in await site.cluster.list(EVENTS, site.namespace, fields=fields)
    ]


async def is_gone(site: Any) -> bool:
    return await site.cluster.get(DEPLOYMENTS, site.namespace, canary_name("m")) is None


async def annotate(site: Any, words: str) -> None:
    annotations = {"kvasir.dev/rollout": words}
    await site.edit(LLMDEPLOYMENTS, "m", {"metadata": {"annotations": annotations}})


async def test_a_bad_canary_goes_and_a_retried_one_is_promoted(site: Any, start: Any) -> None:
    operator = start()
    await site.apply(**SPEC)
    await site.until("Ready", "True")
    stable = await engines(site, canary=False)
    assert len(stable) == 2

    await site.apply(**SPEC, engine=NEW)
    first = await phase(site, "Analysing")
    assert (first["split"]["weight"], first["replicas"]) == (10, 1)
    assert len(await engines(site, canary=True)) == 1
    assert await engines(site, canary=False) == stable
    await count(site, answers=40, errors=20)
    back = await phase(site, "RolledBack")
    assert back["reason"] == "ErrorsIncreased"
    await site.until("Degraded", "True", "CanaryRolledBack")
    await site.eventually(lambda: is_gone(site), "no canary")
    assert await engines(site, canary=False) == stable
    assert "CanaryRolledBack" in await events(site)
    assert operator.metric("kvasir_operator_canary_rollbacks_total") == 1

    operator.kill()
    operator.start()
    # Another one of that class applies the same again, as GitOps does
    await site.apply(**SPEC, engine=NEW)
    await site.apply(**{**SPEC, "replicas": 3}, engine=NEW)
    await site.until("WorkloadReady", "False", "CanaryRolledBack")
    assert await site.eventually(lambda: has_engines(site, 3), "three engines")
    assert stable < await engines(site, canary=False)

    await annotate(site, f"retry {back['id']}")
    again = await phase(site, "Analysing")
    assert again["attempt"] == 2
    await site.apply(**{**SPEC, "replicas": 3}, engine=NEW)
    assert "annotations" in (await site.get())["metadata"], "an apply leaves what is not its own"
    await count(site, answers=60)
    second = await phase(site, "Analysing", step=2)
    assert (second["split"]["weight"], second["replicas"]) == (50, 2)
    operator.kill()
    operator.start()
    await count(site, answers=60)
    await phase(site, "Promoted", step=2)
    await site.until("Ready", "True")
    await site.eventually(lambda: is_gone(site), "no canary")
    live = await site.get(DEPLOYMENTS)
    [container] = live["spec"]["template"]["spec"]["containers"]
    assert "--no-overlap" in container["args"]
    assert {"CanaryStarting", "CanaryAnalysing", "CanaryPromoting", "CanaryPromoted"} <= set(
        await events(site)
    )


async def has_engines(site: Any, wanted: int) -> bool:
    return len(await engines(site, canary=False)) == wanted


async def test_words_of_people(site: Any, start: Any) -> None:
    start()
    canary = {**CANARY, "steps": [{"weight": 10, "pause": {}}, {"weight": 50, "pause": {}}]}
    spec = {"replicas": 1, "rollout": {"canary": canary}}
    await site.apply(**spec)
    await site.until("Ready", "True")
    await site.apply(**spec, engine=NEW)
    first = await phase(site, "Paused")
    await annotate(site, f"promote {first['id']}")
    second = await phase(site, "Paused", step=2)
    await annotate(site, f"abort {second['id']}")
    back = await phase(site, "RolledBack", step=2)
    assert back["reason"] == "Aborted"
    await annotate(site, f"retry {back['id']}")
    third = await phase(site, "Paused")
    await annotate(site, f"promote-all {third['id']}")
    await phase(site, "Promoted")
    await site.until("Ready", "True")


async def test_an_image_that_does_not_start(site: Any, start: Any) -> None:
    start()
    spec = {"replicas": 1, "rollout": {"canary": CANARY}}
    await site.apply(**spec)
    await site.until("Ready", "True")
    stable = await engines(site, canary=False)

    def fate(pod: dict[str, Any]) -> dict[str, Any] | None:
        if not label(pod, labels.TRACK):
            return None
        waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
        engine = {
            "name": labels.ENGINE,
            "image": "none:1",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"waiting": waiting},
        }
        return {"phase": "Pending", "containerStatuses": [engine]}

    site.fate = fate
    await site.apply(**spec, engine={"image": "none:1"})
    back = await phase(site, "RolledBack")
    assert back["reason"] == "StartFailed"
    assert "no such image" in back["message"]
    assert await engines(site, canary=False) == stable
