"""Process that watches the GPUs: `python -m kvasir_engine.server.process.gpu_watch_process
RUNTIME_DIR PARENT_PID`.

It is one of its own so that a call of NVML which never ends keeps no other one from ending.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kvasir.engine_values import GPU_FAULT_STATUS
from kvasir.logs import configure_logging, get_logger
from kvasir_engine.core.channels import Channels, CoreConfig
from kvasir_engine.parent_death import die_with_parent
from kvasir_engine.server.gpu_faults.fault_judge import FaultJudge
from kvasir_engine.server.gpu_faults.fault_watch import FaultWatch
from kvasir_engine.server.gpu_faults.gpu_probe import GpuProbe
from kvasir_engine.server.gpu_faults.nvml_probe import NvmlProbe
from kvasir_engine.server.gpu_faults.simulated_probe import SimulatedProbe
from kvasir_engine.server.gpu_faults.xid_table import parse_xids
from kvasir_engine.server.process.api_config import read_api_config
from kvasir_engine.server.server_settings import ServerSettings


def main() -> int:
    """Exit status: GPU_FAULT_STATUS for a fault that ends the engine, with a sentence in
    `Channels.gpu_fault`; 0 if nothing can be watched."""
    channels, parent = Channels(Path(sys.argv[1])), int(sys.argv[2])
    die_with_parent(parent)
    core, server = channels.read_config(), read_api_config(channels).server
    # Read by prometheus_client when it is imported, so set before anything imports that.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(channels.metrics)
    configure_logging("gpu-watch", level=core.log_level)
    from kvasir_engine.metric_registry import MetricRegistry
    from kvasir_engine.server.gpu_faults.fault_log import FaultLog

    judge = FaultJudge(
        parse_xids(server.gpu_fault_xids),
        drains=server.gpu_faults == "drain",
        settle=server.gpu_fault_settle,
    )
    registry = MetricRegistry(core.metrics_prefix, core.model_name)
    teller = FaultLog(registry, get_logger(__name__))
    fault = FaultWatch(make_probe(core, server), judge, teller).run()
    if fault is None:
        return 0
    channels.gpu_fault.write_text(fault.sentence)
    return GPU_FAULT_STATUS


def make_probe(core: CoreConfig, server: ServerSettings) -> GpuProbe:
    """Return the probe of the engine's GPUs."""
    if server.sim_gpu_fault is not None:
        return SimulatedProbe(server.sim_gpu_fault)
    return NvmlProbe(core.settings.tensor_parallel_size)


if __name__ == "__main__":
    sys.exit(main())
