"""Definitions that are newer or older than the operator, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from kvasir.kube.objects import condition
from kvasir.resource.crd_writer import as_yaml, crd
from kvasir_operator.kinds import DEPLOYMENTS

pytestmark = pytest.mark.slow


@pytest.fixture
def define(plane: Any) -> Iterator[Callable[..., None]]:
    """define(change): the definition of LLMDeployments with `change` made to its schema's
    properties; without an argument, as it is. That is so again at the end."""

    def define(change: Callable[[dict[str, Any]], None] = lambda schema: None) -> None:
        definition = copy.deepcopy(crd())
        change(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"])
        plane.define(yaml.safe_dump(definition))

    yield define
    plane.define(as_yaml())


def newer(schema: dict[str, Any]) -> None:
    """What a later version might add: a field with a default, one in a list, one that is set."""
    spec = schema["spec"]["properties"]
    spec["sharding"] = {"type": "string", "default": "none"}
    spec["engine"]["properties"]["env"]["items"]["properties"]["when"] = {"type": "string"}
    voice = {"pitch": {"type": "integer"}}
    spec["model"]["properties"]["voice"] = {"type": "object", "properties": voice}
    schema["status"]["properties"]["mood"] = {"type": "string"}


def older(schema: dict[str, Any]) -> None:
    """What an earlier version might not have had."""
    del schema["spec"]["properties"]["monitoring"]
    del schema["spec"]["properties"]["router"]["properties"]["holdSeconds"]
    del schema["status"]["properties"]["startup"]
    del schema["status"]["properties"]["url"]


def before_classes(schema: dict[str, Any]) -> None:
    del schema["spec"]["properties"]["className"]
    del schema["status"]["properties"]["className"]


@pytest.mark.slow
async def test_a_newer_definition_and_back(site: Any, start: Any, define: Any) -> None:
    """What the operator does not know is kept, told, and in nobody's way."""
    define(newer)
    operator = start()
    voice, env = {"pitch": 3}, [{"name": "A", "value": "x", "when": "now"}]
    model = {"uri": "builtin://kvasir-tiny", "voice": voice}
    await site.apply(model=model, engine={"env": env})
    await site.until("Ready", "True")
    resource = await site.get()
    accepted = condition(resource, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "UnknownFields")
    assert (
        "does not know spec.engine.env[0].when, spec.model.voice, spec.sharding; they are kept and"
        " have no effect. Upgrade the operator."
    ) in accepted["message"]
    spec = resource["spec"]
    assert (spec["model"]["voice"], spec["engine"]["env"], spec["sharding"]) == (voice, env, "none")
    writers = [each["manager"] for each in resource["metadata"]["managedFields"]]
    assert sorted(set(writers)) == ["kvasir-operator", "user"]
    engines = await site.get(DEPLOYMENTS)

    define()
    await site.until("Accepted", "True", "Accepted")
    await site.until("Ready", "True")
    assert (await site.get(DEPLOYMENTS))["spec"] == engines["spec"], "nothing is rolled out for it"
    # An API server with the older definition drops it, at the latest with the next write
    assert "voice" not in (await site.get())["spec"]["model"]
    define(newer)
    await site.until("Accepted", "True", "UnknownFields")
    assert operator.stop() == 0


@pytest.mark.slow
async def test_an_older_definition_and_back(site: Any, start: Any, define: Any) -> None:
    define(older)
    operator = start("--router-url", "http://router")
    await site.apply()
    await site.until("Accepted", "True", "CRDOutdated")
    assert condition(await site.get(), "Accepted")["message"] == (
        "The installed CustomResourceDefinition is older than the operator and lacks"
        " spec.router.holdSeconds, spec.monitoring, status.url, status.startup; upgrade the chart"
        " with crds.enabled."
    )
    await site.until("Ready", "True")
    assert "url" not in (await site.get())["status"]
    define()
    await site.until("Accepted", "True", "Accepted")
    assert (await site.get())["status"]["url"] == "http://router"
    assert operator.stop() == 0


@pytest.mark.slow
async def test_without_classes_it_does_not_begin(site: Any, start: Any, define: Any) -> None:
    """Beside an operator from before there were classes it would write the same objects."""
    define(before_classes)
    operator = start()

    async def ended() -> bool:
        return operator.process.poll() is not None

    await site.eventually(ended, "the end of the process")
    assert operator.process.returncode == 1
    assert operator.log.splitlines()[-1] == (
        "kvasir operator: the installed CustomResourceDefinition llmdeployments.kvasir.dev lacks"
        " spec.className and status.className; upgrade it with crds.enabled=true (and"
        " crds.adopt=true if it is another release's)"
    )
