"""A fault of a simulated GPU: from its probe's file to the engine's end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.engine_values import GPU_FAULT_STATUS
from kvasir_engine.sim.latency_model import PROFILES

pytestmark = pytest.mark.slow

BODY = {"model": "sim", "prompt": "Hello", "max_tokens": 2000, "stream": True}


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    """Flags of an engine with a slow GPU, to which happens what is written to `faults`."""
    profile = json.loads((PROFILES / "h200-llama-3.1-8b-bf16.json").read_bytes())
    (tmp_path / "slow.json").write_text(json.dumps({**profile, "overhead_ms": 100.0}))
    return (
        *("sim", "--device", "sim", "--model-config", "builtin://kvasir-tiny"),
        *("--speed-profile", str(tmp_path / "slow.json")),
        *("--sim-gpu-fault", str(tmp_path / "faults"), "--gpu-fault-settle", "0"),
    )


def watched(served: Any) -> bool:
    """Return whether its GPU is watched: what was written before never happens."""
    lines = served.get("/metrics").text.splitlines()
    return any(line.startswith("kvasir_gpus_watched{") and line.endswith(" 1.0") for line in lines)


def test_a_failed_gpu_ends_the_engine_after_its_requests(
    serve: Callable[..., Any], flags: tuple[str, ...], tmp_path: Path
) -> None:
    served = serve(*flags, "--gpu-fault-timeout", "2", "--api-processes", "2")
    served.until(lambda: watched(served))
    with served.client.stream("POST", "/v1/completions", json=BODY) as response:
        lines = response.iter_lines()
        next(lines)
        (tmp_path / "faults").write_text("xid 13\nxid 79\n")
        served.until(lambda: served.get("/ready").status_code == 503)
        told = served.get("/ready").json()
        assert told["status"] == "gpu_fault"
        assert told["reason"] == "GPU sim-0: Xid 79, it has fallen off the bus"
        assert served.get("/live").status_code == 200
        refused = served.client.post("/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        metrics = served.get("/metrics").text
        assert 'kind="xid_79"' in metrics
        assert any('"error"' in line for line in lines), "a plain client is told at the end"
    assert served.process.wait(30) == GPU_FAULT_STATUS
    log = served.log.read_text()
    assert "a GPU has failed" in log
    assert log.rstrip().endswith(
        "ended for a fault of its GPU: GPU sim-0: Xid 79, it has fallen off the bus."
    )


def test_a_probe_that_hangs_keeps_no_engine_from_serving_or_ending(
    serve: Callable[..., Any], flags: tuple[str, ...], tmp_path: Path
) -> None:
    served = serve(*flags)
    served.until(lambda: watched(served))
    (tmp_path / "faults").write_text("hang 600\n")
    answer = served.client.post("/v1/completions", json={**BODY, "max_tokens": 1, "stream": False})
    assert answer.status_code == httpx.codes.OK
    assert served.stop() == 0
