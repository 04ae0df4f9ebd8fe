"""What the parts of a router's process tell each other."""

import asyncio
import time

from kvasir_router.fleet.replica_load import LoadReport


async def test_a_process_that_stood_still_holds_no_silence_against_its_replicas(
    start_router, start_replica, model_entry
) -> None:
    router = await start_router([model_entry("m", await start_replica())])
    [(_, replica)] = router.server.fleet.replicas()
    await asyncio.sleep(0.1)
    replica.load.report_every = 0.2
    replica.load.reported(LoadReport(1, 0, 400, 0.1, time.monotonic()))
    time.sleep(1.0)  # noqa: ASYNC251 - the loop is what stands still
    assert not replica.load.stale
    replica.load.awake_since = lambda: 0.0
    assert replica.load.stale, "all of it was silence"
