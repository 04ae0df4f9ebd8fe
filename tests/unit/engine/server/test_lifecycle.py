from __future__ import annotations

import asyncio

from kvasir_engine.server.gpu_faults.fault_page import FaultPage
from kvasir_engine.server.process.peer_readiness import PeerReadiness

BODY = {"prompt": "abc", "max_tokens": 100, "stream": True}


async def test_a_drain_lets_running_requests_finish(server, until):
    server.core.step_seconds = 0.005
    running = asyncio.create_task(server.post("/v1/completions", BODY))
    await until(lambda: server.core.requests)
    drained = asyncio.create_task(server.lifecycle.drain(20.0))
    await until(lambda: server.lifecycle.draining)
    assert (await server.get("/ready")).json() == {"status": "draining"}
    assert (await server.get("/health")).status_code == 200
    refused = await server.post("/v1/completions", BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    await drained
    assert "[DONE]" in (await running).text


async def test_a_process_is_not_ready_before_those_that_share_its_port(server, tmp_path):
    others = [PeerReadiness(tmp_path, index, 2) for index in range(2)]
    others[0].mark_ready()
    server.lifecycle.peers = others[0]
    assert (await server.get("/ready")).json() == {"status": "starting"}
    others[1].mark_ready()
    assert (await server.get("/ready")).json() == {"status": "ready"}


async def test_a_gpu_that_has_failed_makes_it_unready_with_the_reason(server, tmp_path):
    page = FaultPage(tmp_path / "page", create=True)
    server.lifecycle.fault = page
    assert (await server.get("/ready")).json() == {"status": "ready"}
    page.write("GPU g: Xid 79")
    answer = await server.get("/ready")
    assert answer.status_code == 503
    assert answer.json() == {"status": "gpu_fault", "reason": "GPU g: Xid 79"}
    for path in ("/live", "/health"):
        assert (await server.get(path)).status_code == 200, "nothing is to kill it"
    refused = await server.post("/v1/completions", BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert "GPU" in refused.json()["error"]["message"]
    await server.lifecycle.drain(1.0)
    assert (await server.get("/ready")).json()["status"] == "gpu_fault", "also while it drains"
