"""The admin port."""


async def test_the_fleet_as_the_router_sees_it(
    start_replica, start_router, model_entry, client
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica, aliases=["a"])])
    await client.post(f"{router.url}/v1/x", json={"model": "a"})
    response = await client.get(f"{router.admin_url}/debug/fleet")
    [model] = response.json()["models"]
    assert (model["name"], model["aliases"], model["ready"]) == ("m", ["a"], True)
    assert model["replicas"] == [
        {
            "id": "r0",
            "address": f"127.0.0.1:{replica.port}",
            "health": "ready",
            "breaker": "closed",
            "draining": False,
            "in_flight": 0,
            "served": 1,
            "failures": {},
            "max_model_len": 4096,
        }
    ]


async def test_health_ready_and_metrics(start_router, client) -> None:
    router = await start_router([])
    assert (await client.get(f"{router.admin_url}/health")).status_code == 200
    assert (await client.get(f"{router.admin_url}/ready")).status_code == 503
    metrics = await client.get(f"{router.admin_url}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "kvasir_router_discovery_good 1.0" in metrics.text


async def test_admin_routes_are_not_on_the_main_port(start_router, client) -> None:
    router = await start_router([])
    assert (await client.get(f"{router.url}/debug/fleet")).status_code == 404
