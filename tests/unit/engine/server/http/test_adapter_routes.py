"""LoRA adapters over HTTP, as vLLM's callers load them and clients use them."""

from __future__ import annotations

import pytest

from kvasir.wire.block_hash import chain_hashes, root_hash
from kvasir_engine.server.large_bodies.shared_body import LARGE_BODY_BYTES
from kvasir_engine.server.loaded_adapters import NO_LORA

SQL = {"lora_name": "sql", "lora_path": "/models/sql"}
PROMPT = list(range(1, 65))


async def test_a_loaded_adapter_is_a_model_with_its_parent(server) -> None:
    answer = await server.post("/v1/load_lora_adapter", SQL)
    assert (answer.status_code, answer.text[:8]) == (200, "Success:")
    cards = (await server.get("/v1/models")).json()["data"]
    name = cards[0]["id"]
    (card,) = (each for each in cards if each["id"] == "sql")
    assert (card["root"], card["parent"]) == ("/models/sql", name)
    assert (await server.get("/v1/models/sql")).json() == card
    answer = await server.post("/v1/completions", {"model": "sql", "prompt": "a"})
    assert (answer.status_code, answer.json()["model"]) == (200, "sql")
    again = await server.post("/v1/load_lora_adapter", SQL)
    assert again.status_code == 400
    assert "has already been loaded" in again.json()["error"]["message"]
    assert (await server.post("/v1/unload_lora_adapter", SQL)).status_code == 200
    gone = await server.post("/v1/completions", {"model": "sql", "prompt": "a"})
    assert gone.json()["error"]["code"] == "model_not_found"
    assert (await server.post("/v1/unload_lora_adapter", SQL)).status_code == 404


async def test_its_blocks_are_kept_apart_from_the_models(server) -> None:
    await server.post("/v1/load_lora_adapter", SQL)
    for model in (None, "sql"):
        body = {"prompt": PROMPT, **({"model": model} if model else {})}
        assert (await server.post("/v1/completions", body)).status_code == 200
    plain, own = list(server.core.requests)[-2:]
    assert (plain.lora, own.lora) == ("", "sql")
    assert plain.block_hashes != own.block_hashes
    info = server.lifecycle.info
    root = root_hash(info.prefix_seed, lora="sql")
    assert own.block_hashes == chain_hashes(own.prompt_token_ids, info.block_size, root=root)


async def test_a_large_body_may_name_it_too(server) -> None:
    await server.post("/v1/load_lora_adapter", SQL)
    body = {"model": "sql", "prompt": "a", "user": "x" * LARGE_BODY_BYTES}
    assert (await server.post("/v1/completions", body)).status_code == 200
    assert list(server.core.requests)[-1].lora == "sql"
    other = await server.post("/v1/completions", {**body, "model": "chat"})
    assert other.status_code == 404
    assert "'sql'" in other.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"lora_name": 1, "lora_path": "x"}, 400), ({**SQL, "x": "y" * 20000}, 413)],
)
async def test_bodies_that_cannot_be_read(server, body, status: int) -> None:
    assert (await server.post("/v1/load_lora_adapter", body)).status_code == status


async def test_an_engine_that_computes_has_none(start_server) -> None:
    server = await start_server(lora_refusal=NO_LORA)
    answer = await server.post("/v1/load_lora_adapter", SQL)
    assert answer.status_code == 501
    assert answer.json()["error"] == {
        "message": NO_LORA,
        "type": "not_implemented_error",
        "param": None,
        "code": "lora_not_supported",
    }


async def test_none_is_loaded_before_the_model(start_server) -> None:
    server = await start_server(ready=False)
    assert (await server.post("/v1/load_lora_adapter", SQL)).status_code == 503
