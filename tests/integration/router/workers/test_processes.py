"""Workers as real processes: what they share, and what is left when one of them is gone."""

import asyncio
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key, make_key

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


async def fleet(client, router):
    response = await client.get(f"{router.admin_url}/debug/fleet")
    assert response.status_code == 200, response.text
    [model] = response.json()["models"]
    return model


async def metric(client, url: str, name: str, **labels: str) -> float:
    text = (await client.get(f"{url}/metrics")).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith((f"kvasir_router_{name}{{", f"kvasir_router_{name} "))
        and all(f'{key}="{value}"' in line for key, value in labels.items())
    )


def reads(client, url: str, expected: float, name: str, **labels: str):
    """A condition: the metric is this. It may be late: a worker that stands still for half a second
    has its last numbers in the sums."""

    async def check() -> bool:
        return await metric(client, url, name, **labels) == expected

    return check


async def nothing_in_flight(client, router) -> bool:
    return not any(replica["in_flight"] for replica in (await fleet(client, router))["replicas"])


async def ask(url: str, count: int = 1, **headers: str) -> list[int]:
    """Statuses, each over a connection of its own."""
    statuses = []
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    for _ in range(count):
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            path = f"{url}/v1/chat/completions"
            statuses.append((await http.post(path, json=body, headers=headers)).status_code)
    return statuses


async def test_they_share_the_port_and_their_numbers(
    config, fleet_of_two, start_workers, client, until
) -> None:
    await fleet_of_two()
    router = await start_workers(config)
    assert await ask(router.url, 30) == [200] * 30
    for url in (router.url, router.admin_url):
        await until(reads(client, url, 30, "requests_total", model="m", code="200"))
    model = await fleet(client, router)
    assert model["requests"] == 30
    assert sum(replica["served"] for replica in model["replicas"]) == 30
    served = []
    for name, pid in router.pids().items():
        if name != "index":
            served.append(name)
            os.kill(pid, signal.SIGKILL)  # what it counted stays
            await router.replaced(name, pid)
    assert len(served) == 2
    assert await ask(router.url, 4) == [200] * 4
    await until(reads(client, router.admin_url, 34, "requests_total", model="m", code="200"))
    router.router.signal(signal.SIGTERM)
    code, out, err = await router.router.ended()
    assert code == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    assert len([record for record in records if record.get("model") == "m"]) >= 4


async def test_what_is_in_flight_is_everybodys(
    config, write_config, model_entry, start_replica, start_workers, client, post, until
) -> None:
    go_on = asyncio.Event()

    async def wait(exchange) -> None:
        await go_on.wait()
        await exchange.json(200, {})

    replicas = [await start_replica(script=wait) for _ in range(2)]
    write_config(config, [{**model_entry("m", *replicas), "policy": "least_load"}])
    router = await start_workers(config)
    connections = []
    for _ in range(40):  # one after the other: each worker has to know of the other one's
        reader, writer = await asyncio.open_connection("127.0.0.1", router.router.port)
        writer.write(post(b'{"model": "m"}'))
        connections.append((reader, writer))
        before = sum(len(replica.requests) for replica in replicas)
        await until(lambda before=before: sum(len(r.requests) for r in replicas) > before)
    assert [len(replica.requests) for replica in replicas] == [20, 20]
    pids = router.pids()
    for name in ("worker0", "worker1"):
        os.kill(pids[name], signal.SIGKILL)
        await router.replaced(name, pids[name])
    await until(lambda: nothing_in_flight(client, router))
    go_on.set()
    assert await ask(router.url, 4) == [200] * 4
    for _, writer in connections:
        writer.close()


async def test_a_worker_is_killed_under_load(
    config, fleet_of_two, start_workers, start_clients, client, until
) -> None:
    await fleet_of_two()
    router = await start_workers(config)
    clients = start_clients(router.url, 16)
    for _ in range(3):
        await asyncio.sleep(0.4)
        pid = router.send("worker0", signal.SIGKILL)
        await router.replaced("worker0", pid)
    before = clients.answered
    await until(lambda: clients.answered >= before + 32)
    await clients.stop()
    # A client has one connection: at each kill it loses no more than the request on it
    assert len(clients.lost) <= 3 * 16
    assert all("RemoteProtocolError" in each or "ReadError" in each for each in clients.lost)
    await until(lambda: nothing_in_flight(client, router))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_index_process_fails_under_load(
    config, fleet_of_two, start_workers, start_clients, client, number, until
) -> None:
    replicas = await fleet_of_two()
    router = await start_workers(config)
    clients = start_clients(router.url, 8)
    await asyncio.sleep(0.3)
    pid = router.send("index", number)
    await asyncio.sleep(2.0)  # longer than its silence may last
    await replicas[0].stop()  # while nobody else looks after the replicas
    await asyncio.sleep(1.0)
    if number is signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    else:
        await router.replaced("index", pid)

    async def is_down() -> bool:
        return (await fleet(client, router))["replicas"][0]["health"] != "ready"

    await until(is_down)
    await replicas[0].start()
    before = len(replicas[0].requests)
    await until(lambda: len(replicas[0].requests) > before)
    await clients.stop()
    assert clients.lost == []
    answered = clients.answered
    await until(reads(client, router.admin_url, answered, "requests_total", model="m", code="200"))


async def test_a_policy_that_is_set_reaches_all_and_outlives_the_index_process(
    config, fleet_of_two, start_workers, client, until, monkeypatch
) -> None:
    replicas = await fleet_of_two()
    monkeypatch.setenv("KVASIR_FLEET_SECRET", "s3cret")
    router = await start_workers(config)
    answer = await client.put(
        f"{router.admin_url}/policy/m",
        json={"policy": "round_robin"},
        headers={"x-kvasir-fleet-secret": "s3cret"},
    )
    assert answer.status_code == 200
    pid = router.send("index", signal.SIGKILL)
    await router.replaced("index", pid)

    async def is_set() -> bool:
        return (await fleet(client, router))["policy"] == "round_robin"

    await until(is_set)
    assert await ask(router.url, 40) == [200] * 40
    # Each worker takes turns: without a policy's change all would be sent to one for its cache
    assert min(len(replica.requests) for replica in replicas) >= 18


async def test_every_process_follows_the_fleet_secret(
    config, fleet_of_two, start_workers, start_clients, client, until, tmp_path
) -> None:
    replicas = await fleet_of_two()
    file = tmp_path / "secret"
    file.write_text("old")
    router = await start_workers(config, 2, "--fleet-secret-file", str(file))
    clients = start_clients(router.url, 8)
    for text in ("old\nnew", "new\nold", "new"):
        file.write_text(text)

        async def followed(text: str = text) -> bool:
            """The index process lets every line change things; probes and requests carry the
            first one, from whichever process."""
            got = {}
            for secret in ("old", "new"):
                answer = await client.put(
                    f"{router.admin_url}/policy/m",
                    json={"policy": "round_robin"},
                    headers={"x-kvasir-fleet-secret": secret},
                )
                got[secret] = answer.status_code
            return got == {it: 200 if it in text else 401 for it in ("old", "new")}

        await until(followed)
        for replica in replicas:
            replica.requests.clear()
            replica.probes.clear()
        first = text.split()[0]

        def all_carry(first: str = first) -> bool:
            heard = [it.header("x-kvasir-fleet-secret") for r in replicas for it in r.requests]
            probed = [it.header("x-kvasir-fleet-secret") for r in replicas for it in r.probes]
            return heard[-40:] == [first] * 40 and probed[-4:] == [first] * 4

        await until(all_carry)
    await clients.stop()
    assert clients.lost == []


@pytest.mark.slow
async def test_a_worker_that_stands_still_is_replaced(
    config, fleet_of_two, start_workers, until, client
) -> None:
    """Sooner than one that has only begun, so both serve before."""
    await fleet_of_two()
    router = await start_workers(config)

    async def both_serve() -> bool:
        return await metric(client, router.admin_url, "workers") == 2

    await until(both_serve)
    pid = router.send("worker0", signal.SIGSTOP)
    await until(lambda: router.pids().get("worker0") not in (None, pid), 120)
    assert await ask(router.url, 16) == [200] * 16


async def test_nothing_outlives_the_supervisor(config, fleet_of_two, start_workers, until) -> None:
    await fleet_of_two()
    router = await start_workers(config)
    pids = router.pids().values()
    router.router.signal(signal.SIGKILL)
    await router.router.ended()
    await until(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - may vanish while it is read
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_a_bad_file_at_the_start(config, start_process) -> None:
    config.write_text("models: [{name: m, oops: 1}]")
    router = await start_process(config, "--workers", "2", wait=False)
    code, _, err = await router.ended()
    assert code == 2
    assert b"models[0].oops" in err
    assert b"Traceback" not in err


async def test_limits_hold_over_all(
    config, fleet_of_two, start_workers, tmp_path, client, until
) -> None:
    await fleet_of_two()
    keys = tmp_path / "keys.yaml"
    key = make_key()
    entry = ApiKey(id="k", hash=hash_key(key.encode()), requests_per_minute=20)
    keys.write_bytes(dump_keys(KeyFile(keys=(entry,))))
    router = await start_workers(config, 2, "--keys-file", str(keys))
    before = time.monotonic()
    asked = [ask(router.url, 12, authorization=f"Bearer {key}") for _ in range(5)]
    statuses = [status for some in await asyncio.gather(*asked) for status in some]
    refilled = (time.monotonic() - before) / 60 * 20
    assert 20 <= statuses.count(200) <= 20 + refilled + 1
    assert statuses.count(200) + statuses.count(429) == 60
    refused = statuses.count(429)
    await until(reads(client, router.admin_url, refused, "admission_refusals_total"))


@pytest.mark.slow
async def test_cycles_of_workers_and_routers_lose_nothing() -> None:
    cycles = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "e2e" / "router_cycles.py"), "--cycles", "2"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(cycles.communicate(), 120)
    assert cycles.returncode == 0, out.decode()


@pytest.fixture
def start_streams(config, write_config, model_entry, stream_until, start_workers, post):
    """A router whose answers are streams that end when the event is set, and a function that begins
    one."""

    async def start(*options: str):
        replica, go_on = await stream_until()
        write_config(config, [model_entry("m", replica)])
        router = await start_workers(config, 2, *options)

        async def begin():
            reader, writer = await asyncio.open_connection("127.0.0.1", router.router.port)
            writer.write(post(b'{"model": "m"}'))
            await reader.readuntil(b"data: 1\n\n")
            return reader, writer

        return router, go_on, begin

    return start


async def test_sigterm_drains_every_worker(start_streams, until) -> None:
    router, go_on, begin = await start_streams("--drain-timeout", "60")

    async def refuses() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", router.router.port)
        except ConnectionError:
            return True
        writer.close()
        return False

    streams = [await begin() for _ in range(8)]
    router.router.signal(signal.SIGTERM)
    await until(refuses)
    go_on.set()
    for reader, writer in streams:
        assert (await reader.read()).endswith(b"data: 2\n\n\r\n0\r\n\r\n")
        writer.close()
    code, _, err = await router.router.ended()
    assert code == 0, err


async def test_before_the_drain_workers_accept_and_none_is_ready(
    start_streams, client, until
) -> None:
    router, go_on, begin = await start_streams("--pre-stop-delay", "600")

    async def is_stopping(url: str) -> bool:
        return (await client.get(f"{url}/ready")).status_code == 503

    early = [await begin() for _ in range(2)]
    router.router.signal(signal.SIGTERM)
    for url in (router.url, router.admin_url):
        await until(partial(is_stopping, url))
    late = [await begin() for _ in range(4)]
    go_on.set()
    for reader, writer in early + late:
        await reader.readuntil(b"data: 2\n\n")
        writer.close()
    router.router.signal(signal.SIGTERM)  # the second one ends it
    await router.router.ended()
