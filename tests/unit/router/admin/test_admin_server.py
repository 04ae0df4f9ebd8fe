"""The admin port's server is started again on the same port, and ends with the router."""

import asyncio

import httpx
import pytest
import uvicorn


async def healthy(url: str) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            return (await client.get(f"{url}/health", timeout=5)).status_code == 200
        except httpx.TransportError:
            return False


@pytest.mark.parametrize("ends", ["raises", "returns"])
async def test_a_server_that_fails_is_started_again(
    ends, start_replica, start_router, model_entry, eventually, monkeypatch
) -> None:
    router = await start_router([model_entry("m", await start_replica())])
    failures = router.server.gateway.tasks.failures
    on_tick, faults = uvicorn.Server.on_tick, [ends]

    async def faulty(server: uvicorn.Server, counter: int) -> bool:
        if faults:
            if faults.pop() == "raises":
                raise RuntimeError("injected")
            return True
        return await on_tick(server, counter)

    assert await healthy(router.admin_url)
    monkeypatch.setattr(uvicorn.Server, "on_tick", faulty)
    await eventually(lambda: failures["admin port"] == 1)
    async with asyncio.timeout(60):
        while not await healthy(router.admin_url):
            pass
    await router.server.stop()
    assert failures["admin port"] == 1
    assert not await healthy(router.admin_url)
