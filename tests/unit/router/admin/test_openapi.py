"""/openapi.json of the admin port describes every route, and its examples run."""

import asyncio
import re

import jsonschema
import pytest
from openapi_spec_validator import validate

from kvasir_router.options.spend_settings import SpendSettings


@pytest.fixture
async def router(start_replica, start_router, model_entry, tmp_path):
    models = [model_entry("llama", await start_replica())]
    spend = SpendSettings(f"sqlite:///{tmp_path}/spend.db")
    return await start_router(models, fleet_secret="s3cret", spend=spend)


async def test_every_route_is_described_and_every_example_runs(router, client) -> None:
    document = (await client.get(f"{router.admin_url}/openapi.json")).json()
    # Takes seconds, in which the router could not ask its replica if it is well
    await asyncio.to_thread(validate, document)
    assert document["paths"].keys() >= {"/", "/serving", "/scaling/{model}", "/debug/route"}
    assert document["paths"]["/policy/{model}"].keys() == {"put", "post"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"][0].isupper(), path
            content = operation.get("requestBody", {}).get("content", {})
            examples = content.get("application/json", {}).get("examples", {"": {}})
            assert (method == "get") == ("" in examples), path
            for example in examples.values():
                url = router.admin_url + path.replace("{model}", "llama")
                headers = {"x-kvasir-fleet-secret": "s3cret"}
                answer = await client.request(
                    method, url, json=example.get("value"), headers=headers
                )
                assert answer.status_code == 200, (path, answer.text)
                kind = answer.headers["content-type"].partition(";")[0]
                schema = operation["responses"]["200"]["content"][kind]["schema"]
                shown = answer.json() if kind == "application/json" else answer.text
                jsonschema.validate(shown, {**schema, "components": document["components"]})


async def test_errors_are_described(router, client) -> None:
    document = (await client.get(f"{router.admin_url}/openapi.json")).json()
    answer = await client.get(f"{router.admin_url}/scaling/nobody")
    schema = document["components"]["schemas"]["Error"]
    assert answer.status_code == 404
    jsonschema.validate(answer.json(), schema)


async def test_the_documentation_needs_nothing_from_elsewhere(router, client) -> None:
    page = (await client.get(f"{router.admin_url}/docs")).text
    assert "://" not in page
    for url in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert (await client.get(f"{router.admin_url}/{url}")).status_code == 200
