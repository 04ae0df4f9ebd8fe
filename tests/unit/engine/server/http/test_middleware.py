from __future__ import annotations

import asyncio

import pytest


@pytest.mark.parametrize("sent", ["my-id.7", "a/b:c_d"])
async def test_a_request_id_is_echoed_and_used(server, sent):
    answer = await server.post(
        "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-request-id": sent}
    )
    assert answer.headers["x-request-id"] == sent
    assert answer.json()["id"] == f"cmpl-{sent}"
    assert server.core.requests[0].request_id == sent


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "a\u00e9", 'a"b'])
async def test_a_harmful_request_id_is_replaced(server, sent):
    made = {
        (await server.get("/health", headers={"x-request-id": sent.encode()})).headers[
            "x-request-id"
        ]
        for _ in range(2)
    }
    assert len(made) == 2
    assert sent not in made


async def test_keys_guard_all_but_the_probes(start_server):
    server = await start_server(api_keys=("one", "two"), fleet_secret="fleet")
    for path in ("/health", "/live", "/ready", "/version", "/metrics"):
        assert (await server.get(path)).status_code == 200
    for path in ("/v1/models", "/load", "/nope"):
        answer = await server.get(path)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    for value in ("Bearer one", "bearer two", "Bearer  two"):
        answer = await server.get("/v1/models", headers={"authorization": value})
        assert answer.status_code == 200
    for value in ("Bearer three", "Basic one", "one", "Bearer", "Bearer on"):
        answer = await server.get("/v1/models", headers={"authorization": value})
        assert answer.status_code == 401
    fleet = {"x-kvasir-fleet-secret": "fleet"}
    assert (await server.get("/v1/models", headers=fleet)).status_code == 200


async def test_the_file_of_the_fleet_secret_is_followed(start_server, tmp_path) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    server = await start_server(api_keys=("k",), fleet_secret="old", fleet_secret_file=file)

    async def accepted() -> list[str]:
        headers = {it: {"x-kvasir-fleet-secret": it} for it in ("old", "new")}
        answers = {it: await server.get("/v1/models", headers=headers[it]) for it in headers}
        return [it for it in answers if answers[it].status_code == 200]

    assert await accepted() == ["old"]
    for text, wanted in (("new\nold", ["old", "new"]), ("new", ["new"]), ("old", ["old"])):
        file.write_text(text)
        async with asyncio.timeout(30):
            while await accepted() != wanted:
                pass


async def test_the_file_of_keys_is_followed(start_server, tmp_path, caplog) -> None:
    file = tmp_path / "keys"
    file.write_text("old")
    server = await start_server(api_keys=("stays",), file_api_keys="old", api_key_file=file)

    async def accepted() -> list[str]:
        headers = {it: {"authorization": f"Bearer {it}"} for it in ("stays", "old", "new")}
        answers = {it: await server.get("/v1/models", headers=headers[it]) for it in headers}
        return [it for it in answers if answers[it].status_code == 200]

    async def stale() -> str:
        (line,) = [
            line
            for line in (await server.get("/metrics")).text.splitlines()
            if line.startswith("kvasir_stale_files{") and 'file="keys"' in line
        ]
        return line.rpartition(" ")[2]

    async def becomes(look, wanted) -> None:
        async with asyncio.timeout(60):
            while await look() != wanted:
                pass

    assert await accepted() == ["stays", "old"]
    for text, wanted in (("new\nold", ["old", "new"]), ("new", ["new"])):
        file.write_text(text)
        await becomes(accepted, ["stays", *wanted])
    assert await stale() == "0.0"
    file.unlink()
    await becomes(stale, "1.0")
    assert await accepted() == ["stays", "new"]
    assert f"{file} cannot be read" in caplog.text
    file.write_text("old")
    await becomes(stale, "0.0")
    assert await accepted() == ["stays", "old"]


@pytest.mark.parametrize("given", [["https://a.example", "https://b.example"], ['["*"]']])
async def test_pages_of_allowed_origins_may_call(start_server, given) -> None:
    """Browsers ask first, without a key."""
    server = await start_server(api_keys=("k",), allowed_origins=given)
    asking = {"origin": "https://b.example", "access-control-request-method": "POST"}
    answer = await server.http.options("/v1/chat/completions", headers=asking)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in ("*", "https://b.example")
    refused = await server.get("/v1/models", headers={"origin": "https://b.example"})
    assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (401, True)


async def test_without_allowed_origins_no_page_may(start_server) -> None:
    server = await start_server()
    answer = await server.get("/v1/models", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_a_proxys_prefix_may_stay_or_be_taken_off(start_server) -> None:
    server = await start_server(api_keys=("k",), root_path="/llm")
    for prefix in ("/llm", ""):
        assert (await server.http.get(f"{prefix}/live")).status_code == 200
        refused = await server.http.get(f"{prefix}/v1/models")
        assert refused.status_code == 401
    document = (await server.http.get("/llm/openapi.json")).json()
    assert document["servers"] == [{"url": "/llm"}]
    assert (await server.http.get("/llmx/live")).status_code == 401
