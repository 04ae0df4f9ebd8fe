"""Every example of /openapi.json, sent to a real core, is answered as the document says."""

from __future__ import annotations

import re

import jsonschema
import pytest


def conform(answer, operation, document) -> None:
    """Fail unless `answer` has the schema that the document gives its status and media type."""
    kind = answer.headers["content-type"].partition(";")[0]
    schema = operation["responses"][str(answer.status_code)]["content"][kind]["schema"]
    content = answer.json() if kind == "application/json" else answer.text
    jsonschema.validate(content, {**schema, "components": document["components"]})


@pytest.mark.slow
async def test_every_example_is_answered_as_described(start_real):
    kinds = set()
    async with start_real(num_blocks=200) as server:
        document = (await server.get("/openapi.json")).json()
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {})
                examples = content.get("application/json", {}).get("examples", {"": {}})
                for name, example in examples.items():
                    answer = await server.http.request(
                        method, path.replace("{name}", "tiny"), json=example.get("value")
                    )
                    assert answer.status_code == 200, (path, name, answer.text)
                    conform(answer, operation, document)
                    kinds.add(answer.headers["content-type"])
    assert len(kinds) == 4


async def test_every_refusal_is_described(start_real):
    async with start_real(num_blocks=200) as server:
        document = (await server.get("/openapi.json")).json()
        refused = 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if "requestBody" in operation or "{" in path:
                    url = re.sub(r"{\w+}", "nobody", path)
                    answer = await server.http.request(method, url, content=b"[")
                    assert answer.status_code in (400, 404), path
                    conform(answer, operation, document)
                    refused += 1
    assert refused == 17
