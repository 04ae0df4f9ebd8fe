"""The admin port."""

import json

import pytest

from kvasir_router.fleet.replica import LoadStreamState
from kvasir_router.fleet.replica_load import LoadReport

pytestmark = pytest.mark.slow

SECRET = {"x-kvasir-fleet-secret": "s3cret"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def router(start_replica, start_router, model_entry):
    replicas = [await start_replica(), await start_replica()]
    return await start_router([model_entry("m", *replicas, aliases=["a"])], fleet_secret="s3cret")


async def test_the_fleet_as_the_router_sees_it(router, client) -> None:
    await client.post(f"{router.url}/score", json={"model": "a"})
    fleet = (await client.get(f"{router.admin_url}/debug/fleet")).json()
    [model] = fleet["models"]
    assert (model["name"], model["aliases"], model["ready"]) == ("m", ["a"], True)
    assert (model["requests"], model["waiting"]) == (1, 0)
    assert fleet["keys"] is None
    first, second = model["replicas"]
    assert first["served"] + second["served"] == 1
    assert first["address"].startswith("127.0.0.1:")
    assert (first["health"], first["breaker"], first["load"]) == ("ready", "closed", None)


async def test_a_replicas_load_is_shown_when_it_is_known(router, client) -> None:
    replica = router.replica("m", "r0")
    replica.load.reported(LoadReport(3, 2, 500, 0.25, 0.0))
    fleet = (await client.get(f"{router.admin_url}/debug/fleet")).json()
    load = fleet["models"][0]["replicas"][0]["load"]
    assert (load["running"], load["waiting"], load["kv_usage"]) == (3, 2, 0.25)


async def test_who_serves(router, client, eventually) -> None:
    async def serving() -> list[str]:
        return (await client.get(f"{router.admin_url}/serving")).json()["serving"]

    assert await serving() == ["r0", "r1"]
    router.replica("m", "r0").heard(LoadStreamState.NOT_READY)
    assert await serving() == ["r1"]


async def test_health_ready_and_metrics(start_router, client) -> None:
    router = await start_router([])
    assert (await client.get(f"{router.admin_url}/health")).status_code == 200
    assert (await client.get(f"{router.admin_url}/ready")).status_code == 503
    metrics = await client.get(f"{router.admin_url}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "kvasir_router_discovery_good 1.0" in metrics.text


async def test_admin_routes_are_not_on_the_main_port(router, client) -> None:
    for path in ("/debug/fleet", "/scaling/m", "/"):
        assert (await client.get(f"{router.url}{path}")).status_code == 404
    response = await client.put(f"{router.url}/policy/m", json={"policy": "round_robin"})
    assert response.status_code == 405


async def test_scaling_signals(router, client) -> None:
    await client.post(f"{router.url}/v1/completions", json={"model": "m"})
    report = (await client.get(f"{router.admin_url}/scaling/m")).json()
    assert (report["ready_replicas"], report["requests"]) == (2, 1)
    assert (report["concurrency"], report["queue"]) == (0, 0)
    external = await client.get(f"{router.admin_url}/scaling/m?format=external-metrics")
    values = {item["metricName"]: item["value"] for item in external.json()["items"]}
    assert values["kvasir_ready_replicas"] == "2"


@pytest.mark.parametrize(
    ("path", "status"), [("scaling/none", 404), ("scaling/a", 404), ("scaling/m?format=xml", 400)]
)
async def test_scaling_of_what_is_not_there(router, client, path, status) -> None:
    response = await client.get(f"{router.admin_url}/{path}")
    assert response.status_code == status
    assert response.json()["error"]["message"]


async def test_a_policy_is_changed_while_the_router_runs(router, client) -> None:
    url = f"{router.admin_url}/policy/m"
    for method, name in (("PUT", "round_robin"), ("POST", "least_load")):
        response = await client.request(method, url, json={"policy": name}, headers=SECRET)
        assert response.json() == {"model": "m", "policy": name}
        fleet = (await client.get(f"{router.admin_url}/debug/fleet")).json()
        assert fleet["models"][0]["policy"] == name
    assert (await client.post(f"{router.url}/score", json={"model": "m"})).status_code == 200


@pytest.mark.parametrize(
    ("model", "body", "status", "word"),
    [
        ("m", {"policy": "best"}, 400, "least_load"),
        ("m", {"name": "x"}, 400, "policy"),
        ("m", {"policy": "kv_aware", "options": {"miss_weight": -1}}, 400, "miss_weight"),
        ("m", [], 400, "policy"),
        ("n", {"policy": "least_load"}, 404, "no model 'n'; models here: m"),
        ("m", {"policy": "x" * 9000}, 413, "4096"),
    ],
)
async def test_what_is_no_policy_change_is_refused(router, client, model, body, status, word):
    url = f"{router.admin_url}/policy/{model}"
    response = await client.put(url, json=body, headers=SECRET)
    assert response.status_code == status
    assert word in response.json()["error"]["message"]


async def test_without_a_fleet_secret_nothing_can_be_changed(start_router, client) -> None:
    router = await start_router([])
    for headers in ({}, {"x-kvasir-fleet-secret": ""}, SECRET):
        for method in ("PUT", "POST"):
            url, body = f"{router.admin_url}/policy/m", {"policy": "round_robin"}
            response = await client.request(method, url, json=body, headers=headers)
            assert response.status_code == 403
            assert "--fleet-secret-file" in response.json()["error"]["message"]


async def test_each_secret_of_the_file_may_change_things_while_it_is_there(
    start_router, start_replica, model_entry, client, tmp_path, eventually
) -> None:
    file = tmp_path / "secret"
    file.write_text("new\nold")
    models = [model_entry("m", await start_replica())]
    router = await start_router(models, fleet_secret="old", fleet_secret_file=file)

    async def status(secret: str) -> int:
        headers = {"x-kvasir-fleet-secret": secret}
        body = {"policy": "round_robin"}
        answer = await client.put(f"{router.admin_url}/policy/m", json=body, headers=headers)
        return answer.status_code

    assert [await status(it) for it in ("new", "old", "other")] == [200, 200, 401]
    file.write_text("new")
    await eventually(lambda: not router.server.gateway.fleet_secrets.accepts("old"))
    assert [await status(it) for it in ("new", "old", "other")] == [200, 401, 401]


async def test_changes_need_the_fleet_secret(router, client) -> None:
    url, body = f"{router.admin_url}/policy/m", {"policy": "round_robin"}
    for headers in ({}, {"x-kvasir-fleet-secret": "other"}):
        response = await client.put(url, json=body, headers=headers)
        assert response.status_code == 401
        assert "s3cret" not in response.text
    assert (await client.put(url, json=body, headers=SECRET)).status_code == 200


async def test_a_choice_is_explained_and_nothing_is_sent(router, client) -> None:
    response = await client.post(f"{router.admin_url}/debug/route", json=CHAT)
    explained = response.json()
    assert explained["model"] == "m"
    assert {each["replica"] for each in explained["candidates"]} == {"r0", "r1"}
    assert sum(each["chosen"] for each in explained["candidates"]) == 1
    assert explained["left_out"] == {}
    fleet = (await client.get(f"{router.admin_url}/debug/fleet")).json()
    assert all(each["served"] == 0 for each in fleet["models"][0]["replicas"])


async def test_an_explanation_says_who_is_left_out(router, client) -> None:
    router.replica("m", "r1").draining = True
    router.server.fleet.models["m"].refresh()
    response = await client.post(f"{router.admin_url}/debug/route", json=CHAT)
    assert response.json()["left_out"] == {"r1": "draining"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "body is empty"),
        (b"{", 400, "not a JSON object"),
        (b"[]", 400, "must be a JSON object, not []"),
        (b"{}", 404, "no model ''"),
        (b'{"model":1}', 400, "must be a string, not 1"),
        (b'{"model":"\xff"}', 400, "not UTF-8"),
        (b'{"model":"m","x":' + b"[" * 100_000, 400, "nested too deeply"),
    ],
)
async def test_what_cannot_be_explained(router, client, body, status, words) -> None:
    response = await client.post(f"{router.admin_url}/debug/route", content=body)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "nothing", 404, "no route GET /nothing on the admin port"),
        ("GET", "debug/route", 405, "GET /debug/route is not possible; use POST"),
        ("DELETE", "policy/m", 405, "use "),
    ],
)
async def test_what_the_admin_port_does_not_have(
    router, client, method, path, status, words
) -> None:
    response = await client.request(method, f"{router.admin_url}/{path}")
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    assert ("allow" in response.headers) == (status == 405)


async def test_the_page_needs_nothing_from_elsewhere(router, client) -> None:
    response = await client.get(f"{router.admin_url}/")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "http://" not in response.text
    assert "https://" not in response.text


async def test_the_pages_fields_are_in_the_answers(router, client) -> None:
    """The page reads these by name."""
    fleet = (await client.get(f"{router.admin_url}/debug/fleet")).text
    scaling = (await client.get(f"{router.admin_url}/scaling/m")).json()
    for field in ("prompt_tokens", "cached_tokens", "completion_tokens", "connections", "full"):
        assert json.dumps(field) in fleet
    assert scaling["ttft_seconds"].keys() == {"p50", "p90", "p99"}
    assert "ratio" in scaling["slo"]
