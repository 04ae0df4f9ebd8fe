"""KServe's protocol: health, metadata and refusals."""

from __future__ import annotations

import pytest


async def test_health_and_metadata_follow_the_engine(start_server, until):
    server = await start_server(ready=False, api_keys=("key",))
    model = "/v2/models/tiny"
    key = {"authorization": "Bearer key"}
    for path, expected in {"/v2/health/live": 200, "/v2/health/ready": 503}.items():
        assert (await server.get(path)).status_code == expected
    assert (await server.get("/v2")).status_code == 401
    assert (await server.get(f"{model}/ready", headers=key)).json()["ready"] is False
    server.core.become_ready()
    await until(lambda: server.lifecycle.ready)
    assert (await server.get("/v2/health/ready")).json() == {"ready": True}
    assert (await server.get("/v2", headers=key)).json()["name"] == "kvasir"
    assert (await server.get(f"{model}/ready", headers=key)).json()["ready"] is True
    metadata = (await server.get(model, headers=key)).json()
    assert metadata["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": [-1]}]
    server.core.alive = False
    assert (await server.get("/v2/health/live")).json() == {"live": False}


TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["x"]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "inputs is required"),
        ({"inputs": []}, "must be one tensor"),
        ({"inputs": [TENSOR | {"datatype": "FP32"}]}, "with the datatype BYTES"),
        ({"inputs": [TENSOR | {"data": [1]}]}, "must be strings"),
        ({"inputs": [TENSOR | {"shape": [2]}]}, "shape [2] does not hold 1 strings"),
        ({"inputs": [TENSOR | {"shape": []}]}, "shape [] does not hold"),
        ({"inputs": [TENSOR], "outputs": [{"name": "logits"}]}, "the output is text_output"),
        ({"inputs": [TENSOR], "parameters": {"stream": True}}, "use /v1/completions"),
        ({"inputs": [TENSOR], "parameters": {"logprobs": 1}}, "use /v1/completions"),
        ({"inputs": [TENSOR], "parameters": {"return_token_ids": True}}, "use /v1/completions"),
        ({"inputs": [TENSOR], "parameters": {"colour": 1}}, "is not a sampling parameter"),
        ({"inputs": [TENSOR], "parameters": {"max_tokens": "many"}}, "Expected `int | null`"),
        ({"inputs": [TENSOR], "parameters": {"top_p": 7}}, "top_p"),
        ({"inputs": [TENSOR], "id": "x" * 300}, "more than 256 characters"),
    ],
)
async def test_a_wrong_request_is_one_sentence(server, body, message):
    answer = await server.post("/v2/models/tiny/infer", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


async def test_an_unknown_model_or_route_is_404_in_the_protocols_form(server):
    for path in ("/v2/models/absent", "/v2/models/absent/ready"):
        answer = await server.get(path)
        assert answer.status_code == 404
        assert "does not exist here" in answer.json()["error"]
    answer = await server.post("/v2/models/absent/infer", {"inputs": [TENSOR]})
    assert answer.status_code == 404
    assert "no route" in (await server.get("/v2/absent")).json()["error"]
    binary = {"inference-header-content-length": "10"}
    answer = await server.post("/v2/models/tiny/infer", {}, headers=binary)
    assert "not supported" in answer.json()["error"]
