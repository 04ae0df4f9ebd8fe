"""KServe's protocol over the real core with the simulated runner, and OpenAI's under its prefix."""

from __future__ import annotations

import pytest


def infer(*texts: str, **parameters: object) -> dict[str, object]:
    tensor = {"name": "text_input", "shape": [len(texts)], "datatype": "BYTES", "data": [*texts]}
    return {"inputs": [tensor], "parameters": parameters}


@pytest.mark.slow
async def test_texts_in_and_out_are_those_of_completions(start_real):
    async with start_real(max_num_seqs=8, num_blocks=200) as server:
        chosen = {"max_tokens": 12, "seed": 7}
        body = {"model": "tiny", "prompt": ["hello", "there"], **chosen}
        completions = (await server.post("/v1/completions", body)).json()["choices"]
        answer = await server.post("/v2/models/tiny/infer", infer("hello", "there", **chosen))
        assert answer.status_code == 200
        usage = answer.json().pop("parameters")["usage"]
        assert usage["completion_tokens"] == 24
        [output] = answer.json()["outputs"]
        assert output == {
            "name": "text_output",
            "shape": [2],
            "datatype": "BYTES",
            "data": [choice["text"] for choice in completions],
        }
        named = await server.post("/v2/models/tiny/infer", {**infer("x", max_tokens=1), "id": "a"})
        assert (named.json()["id"], named.json()["model_name"]) == ("a", "tiny")
        again = await server.post("/openai/v1/completions", body)
        assert [c["text"] for c in again.json()["choices"]] == [c["text"] for c in completions]
        assert (await server.get("/openai/v1/models")).json()["data"][0]["id"] == "tiny"
