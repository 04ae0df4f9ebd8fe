"""Sums over the workers, beside the queue and signals of the process that gathers them."""

from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.process.components import RouterComponents
from kvasir_router.workers.gathered_stats import GatheredStats
from kvasir_router.workers.replication.publisher import Publisher


async def test_waiting_requests_are_those_of_all_processes(tmp_path) -> None:
    router = RouterComponents(RouterSettings(config=tmp_path / "fleet.yaml", access_log=False))
    router.apply((ModelSpec("m"), ModelSpec("idle")))
    queue = router.gateway.queue
    publisher = Publisher(
        router.gateway.tasks, lambda worker, message: None, lambda worker: None, lambda: iter(())
    )
    statistics = GatheredStats(router.gateway, publisher)
    statistics.waits |= {1: {"m": (2, 300)}, 2: {"m": (1, 40), "gone": (9, 9)}}
    model, idle = router.fleet.models["m"], router.fleet.models["idle"]
    assert statistics.waiting(model) == (3, 340)
    assert statistics.waiting(idle) == (0, 0)
    assert statistics.scaling(model)["held"] == 3
    assert (queue.waiting(model), router.gateway.queue) == (0, queue), "nothing live is written"
    statistics.left(2)
    assert statistics.waiting(model) == (2, 300)
    await router.close()
