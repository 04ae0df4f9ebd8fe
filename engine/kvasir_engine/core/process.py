"""The core's process: `python -m kvasir_engine.core.process RUNTIME_DIR PARENT_PID`."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvasir.logs import configure_logging
from kvasir_engine.core.build import Core, build_core
from kvasir_engine.core.channels import Channels, CoreConfig
from kvasir_engine.core.service import CoreService, StepClock
from kvasir_engine.core.status import CorePhase, CoreStatus
from kvasir_engine.core.telemetry import AfterStep, BlockEvents, ThroughputLog
from kvasir_engine.device.process_end import end_by
from kvasir_engine.errors import DeviceError, FatalError, UserError
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.parent_death import die_with_parent

if TYPE_CHECKING:
    from kvasir_engine.parallel.executor import OnRankDeath

log = logging.getLogger(__name__)


def main() -> int:
    """Exit status: 0 after SIGTERM, 2 for settings that cannot work, 1 for anything else."""
    channels, parent = Channels(Path(sys.argv[1])), int(sys.argv[2])
    die_with_parent(parent)
    config = channels.read_config()
    # Read by prometheus_client when it is imported, so set before anything imports that.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(channels.metrics)
    configure_logging("core", level=config.log_level)
    status = CoreStatus(channels.status)

    def failed(error: Exception) -> int:
        """Tell the clients; the exit status."""
        mendable = isinstance(error, UserError)
        named = mendable or isinstance(error, FatalError)
        reason = f"{error}" if named else f"the core failed: {type(error).__name__}: {error}"
        channels.failure.write_text(reason.partition("\n")[0])
        status.phase = CorePhase.DEAD
        return 2 if mendable else 1

    def end_at_once(reason: Exception) -> None:
        # The main thread may be stuck in a collective that will never end, and a device that has
        # failed may hang whoever frees what is on it.
        log.critical("%s", reason)
        os._exit(failed(reason))

    end_by(end_at_once)
    try:
        _serve(channels, config, status, end_at_once)
    except Exception as error:
        code = failed(error)
        if code == 1:
            log.exception("the core failed")
        return code
    return 0


def _reporters(core: Core, config: CoreConfig, recorder: EventRecorder) -> list[AfterStep]:
    from kvasir_engine.core.core_metrics import CoreMetrics
    from kvasir_engine.metric_registry import MetricRegistry

    registry = MetricRegistry(config.metrics_prefix, config.model_name)
    metrics = CoreMetrics(registry, core, config.settings.cache.block_size)
    made: list[AfterStep] = [metrics, ThroughputLog()]
    if config.settings.kv_events_endpoint:
        made.append(BlockEvents(config, recorder, registry))
    return made


def _serve(
    channels: Channels, config: CoreConfig, status: CoreStatus, end_at_once: OnRankDeath
) -> None:
    recorder = EventRecorder(config.prefix_seed)
    core = build_core(
        config.settings,
        Path(config.model_dir),
        watcher=StepClock(status),
        prefix_seed=config.prefix_seed,
        listeners=recorder.listeners if config.settings.kv_events_endpoint else None,
        on_rank_death=end_at_once,
    )
    # What exists now lives as long as the process: never walk it again.
    gc.collect()
    gc.freeze()
    reporters = _reporters(core, config, recorder)
    service = CoreService(
        core, channels, status, num_clients=config.num_clients, after_step=reporters
    )
    try:
        service.run()
    except DeviceError as error:
        end_at_once(error)
    finally:
        for reporter in reporters:
            reporter.close()
        service.close()


if __name__ == "__main__":
    sys.exit(main())
