"""/openapi.json describes every route and field, and /docs shows it without the internet."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openapi_spec_validator import validate

PAGES = {"/openapi.json", "/docs", "/docs/static"}
BODIES = ("CompletionBody", "ChatBody", "TokenizeBody", "DetokenizeBody", "InferBody")


@pytest.fixture
async def document(server) -> dict[str, Any]:
    return (await server.get("/openapi.json")).json()


async def test_every_route_is_described(server, document):
    validate(document)
    routes = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in server.app.routes
        if route.path not in PAGES
        for method in route.methods - {"HEAD"}
    }
    operations = {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert operations.keys() == routes
    for (path, method), operation in operations.items():
        assert operation["summary"][0].isupper(), path
        assert operation["responses"]["200"]["content"], path
        if method == "post" and path != "/reset_prefix_cache":
            media = operation["requestBody"]["content"]["application/json"]
            assert media["schema"]["$ref"].startswith("#/components/schemas/"), path
            assert media["examples"], path
            assert operation["responses"]["400"]["content"], path


async def test_what_can_be_streamed_says_so(document):
    for path in ("/v1/completions", "/openai/v1/chat/completions"):
        answer = document["paths"][path]["post"]["responses"]["200"]
        assert answer["content"]["text/event-stream"]["example"].endswith("data: [DONE]\n\n")


async def test_examples_name_the_served_model(start_server):
    server = await start_server(served_model_names=("mine",))
    document = (await server.get("/openapi.json")).json()
    media = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    for example in media["application/json"]["examples"].values():
        assert example["value"]["model"] == "mine"
    [parameter] = document["paths"]["/v1/models/{name}"]["get"]["parameters"]
    assert parameter["example"] == "mine"


async def test_keys_leave_the_documentation_open(start_server):
    server = await start_server(api_keys=("one",))
    document = (await server.get("/openapi.json")).json()
    assert document["security"] == [{"key": []}]
    page = await server.get("/docs")
    assert page.status_code == 200
    assert "://" not in page.text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 3
    for url in loaded:
        answer = await server.get(f"/{url}")
        assert answer.status_code == 200, url
        assert len(answer.content) > 1000, url
    assert (await server.get("/docs/static/redoc.standalone.js")).status_code == 401


async def test_head_is_answered_as_get(server):
    answer = await server.http.head("/version")
    assert (answer.status_code, answer.content) == (200, b"")
    refused = await server.http.head("/v1/completions")
    assert refused.status_code == 405
    assert refused.headers["allow"] == "POST"


async def test_every_field_of_a_body_has_a_meaning(document):
    schemas = document["components"]["schemas"]
    for body in BODIES:
        for name, schema in schemas[body]["properties"].items():
            assert schema["description"], (body, name)
    temperature = schemas["ChatBody"]["properties"]["temperature"]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 100)


async def test_fields_that_may_be_null_say_so(document):
    answer = document["paths"]["/v1/responses"]["post"]["responses"]["200"]
    fields = answer["content"]["application/json"]["schema"]["properties"]
    assert fields["completed_at"]["type"] == ["integer", "null"]
    assert fields["created_at"]["type"] == "integer"
