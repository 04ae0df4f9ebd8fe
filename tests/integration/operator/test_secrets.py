"""The operator's part with Secrets, with the rights that the chart gives it."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from kvasir_operator.kinds import DEPLOYMENTS, LLMDEPLOYMENTS, SECRETS

pytestmark = pytest.mark.slow

NAME = "kvasir-fleet"


async def fleet_copy(site: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = await site.cluster.get(SECRETS, site.namespace, NAME)
    return found


def value(copy: dict[str, Any] | None) -> str:
    assert copy is not None
    return base64.b64decode(copy["data"]["secret"]).decode()


async def test_a_namespace_has_one_copy_of_the_fleets_secret(
    site: Any, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("first-secret-of-the-fleet-32-chars")
    operator = start("--fleet-secret-file", str(file))
    for name in ("m", "n"):
        await site.apply(name, model={"uri": "builtin://kvasir-tiny", "name": f"model-{name}"})
    for name in ("m", "n"):
        await site.until("Ready", "True", name=name)
    copy = await fleet_copy(site)
    assert copy is not None
    assert value(copy) == "first-secret-of-the-fleet-32-chars"
    owners = [each["name"] for each in copy["metadata"]["ownerReferences"]]
    assert sorted(owners) == ["m", "n"]

    # Neither writes over the other, time and again.
    looks = operator.metric("kvasir_operator_reconciles_total")
    await site.eventually(_has_looked(operator, looks + 6), "more looks")
    again = await fleet_copy(site)
    assert again is not None
    assert again["metadata"]["resourceVersion"] == copy["metadata"]["resourceVersion"]

    # Each line of the file reaches the copy, and no engine is started again.
    async def templates() -> list[Any]:
        found = [await site.get(DEPLOYMENTS, name) for name in ("m", "n")]
        return [each["metadata"]["generation"] for each in found]

    before = await templates()
    old, new = "first-secret-of-the-fleet-32-chars", "second-secret-of-the-fleet-32-char"
    for lines in ([old, new, f"hash-key:{old}"], [new, old, f"hash-key:{old}"], [new]):
        file.write_text("\n".join(lines))

        async def renewed(text: str = "\n".join(lines)) -> bool:
            return value(await fleet_copy(site)) == text

        await site.eventually(renewed, "the new lines")
    file.write_text("")  # cannot be used: nothing changes
    looks = operator.metric("kvasir_operator_reconciles_total")
    await site.eventually(_has_looked(operator, looks + 4), "more looks")
    assert value(await fleet_copy(site)) == new
    assert await templates() == before

    # It goes with the last of them.
    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, "m")

    async def has_one_owner() -> bool:
        found = await fleet_copy(site)
        assert found is not None
        return [each["name"] for each in found["metadata"]["ownerReferences"]] == ["n"]

    await site.eventually(has_one_owner, "one owner")
    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, "n")

    async def gone() -> bool:
        return await fleet_copy(site) is None

    await site.eventually(gone, "no copy")


async def test_secrets_that_may_not_be_read_reach_engines_all_the_same(
    site: Any, start: Any
) -> None:
    start()
    source = {"secretKeyRef": {"name": "theirs", "key": "token"}}
    await site.apply(engine={"env": [{"name": "TOKEN", "valueFrom": source}]})
    await site.until("Ready", "True")
    (engine,) = (await site.get(DEPLOYMENTS))["spec"]["template"]["spec"]["containers"]
    assert {"name": "TOKEN", "valueFrom": source} in engine["env"]


def _has_looked(operator: Any, goal: float) -> Any:
    async def reached() -> bool:
        await asyncio.sleep(0)
        return bool(operator.metric("kvasir_operator_reconciles_total") >= goal)

    return reached
