"""Engines that stop, go on, die and come back, under load: no request is lost."""

import asyncio
import signal
import time

import pytest

from kvasir.wire.text_chain import chain_hashes, completion_pieces
from kvasir_router.fleet.replica import Health

CLIENTS = 12


@pytest.mark.slow
async def test_a_stopped_engine_is_left_at_once_and_used_again_when_it_goes_on(
    start_fleet, start_load, eventually
) -> None:
    engines, router, replicas = await start_fleet(3)
    load = start_load(router.url, CLIENTS)
    begun = time.monotonic()
    await eventually(lambda: len(load.answers) > 20 * CLIENTS, 60)
    stopped = time.monotonic()
    engines[0].signal(signal.SIGSTOP)
    pinned = replicas[0].in_flight
    await eventually(lambda: replicas[0].health is Health.SUSPECT, 60)
    suspected = time.monotonic()
    await eventually(lambda: replicas[0].in_flight == 0, 60)
    left = time.monotonic()
    served = replicas[0].served
    before = len(load.answers)
    await eventually(lambda: len(load.answers) > before + 20 * CLIENTS, 60)
    assert replicas[0].served == served, "nothing new goes there"
    went_on = time.monotonic()
    engines[0].signal(signal.SIGCONT)
    await eventually(lambda: replicas[0].health is Health.READY, 60)
    await eventually(lambda: replicas[0].served > served, 60)
    used = time.monotonic()
    await load.stop()
    assert {status for _, _, status in load.answers} == {200}
    print(
        f"suspected after {suspected - stopped:.2f} s, {pinned} pinned at first, the last left "
        f"after {left - stopped:.2f} s, used again {used - went_on:.2f} s after it went on; "
        f"answers a second: {load.between(begun, stopped) / (stopped - begun):.0f} before, "
        f"{load.between(left, went_on) / (went_on - left):.0f} without it"
    )


@pytest.mark.slow
async def test_a_killed_engine_comes_back_on_its_port_with_an_empty_cache(
    start_fleet, start_load, eventually, client
) -> None:
    engines, router, replicas = await start_fleet(2)
    index = router.server.fleet.models["sim"].policy.index
    body = {"model": "sim", "prompt": "shared words " * 100, "max_tokens": 1}
    chain = chain_hashes(completion_pieces(body, body["prompt"]))

    def cached() -> bool:
        found = index.residency.match(index.texts, chain).get(replicas[0])
        return found is not None and found.text_blocks > 0

    # Not through the router: it learns from the engine's own reports and events
    secret = {"x-kvasir-fleet-secret": "fleet-secret"}
    url = f"{engines[0].entry['url']}/v1/completions"
    async with asyncio.timeout(60):
        while not cached():  # the first prompts may come before it listens
            assert (await client.post(url, json=body, headers=secret)).status_code == 200
            await asyncio.sleep(0.1)
    load = start_load(router.url, CLIENTS // 2)
    await eventually(lambda: len(load.answers) > CLIENTS, 60)
    await engines[0].kill()
    await eventually(lambda: replicas[0].health is Health.DOWN, 60)
    assert not cached()
    await engines[0].start()
    await engines[0].wait_ready()
    ready = time.monotonic()
    served = replicas[0].served
    await eventually(lambda: replicas[0].served > served, 60)
    used = time.monotonic()
    await eventually(lambda: replicas[0].load.report is not None)
    await eventually(lambda: replicas[0].load.kv_capacity > 0)
    await load.stop()
    assert {status for _, _, status in load.answers} == {200}
    print(f"used {used - ready:.2f} s after it was ready")
