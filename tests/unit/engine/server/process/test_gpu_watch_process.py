"""Which probe an engine gets; tests/integration/engine/serve runs the process."""

from __future__ import annotations

from pathlib import Path

from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.server.gpu_faults.nvml_probe import NvmlProbe
from kvasir_engine.server.gpu_faults.simulated_probe import SimulatedProbe
from kvasir_engine.server.process.gpu_watch_process import make_probe
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import EngineSettings


def test_a_simulated_fault_needs_no_driver() -> None:
    core = CoreConfig(EngineSettings("m", device="sim"), "m", num_clients=1)
    made = ServerSettings(model="m", model_dir=Path("m"), sim_gpu_fault=Path("f"))
    assert isinstance(make_probe(core, made), SimulatedProbe)
    made = ServerSettings(model="m", model_dir=Path("m"))
    assert isinstance(make_probe(core, made), NvmlProbe)
