"""The core's process: `python -m kvasir_engine.core.process RUNTIME_DIR PARENT_PID`."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from kvasir.logs import configure_logging

from kvasir_engine.core.build import build_core
from kvasir_engine.core.channels import Channels, CoreConfig
from kvasir_engine.core.orphans import die_with
from kvasir_engine.core.service import CoreService, StepClock
from kvasir_engine.core.status import CoreStatus, Phase
from kvasir_engine.core.telemetry import AfterStep, BlockEvents
from kvasir_engine.kv.block_pool import BlockListener
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.kv.groups import KVGroupSpec

log = logging.getLogger(__name__)


def main() -> int:
    """Exit status: 0 after SIGTERM, 2 for settings that cannot work, 1 for anything else."""
    channels, parent = Channels(Path(sys.argv[1])), int(sys.argv[2])
    die_with(parent)
    config = channels.read_config()
    configure_logging("core", level=config.log_level)
    status = CoreStatus(channels.status)
    try:
        _serve(channels, config, status)
    except Exception as error:
        status.phase = Phase.DEAD
        channels.failure.write_text(f"{error}")
        if isinstance(error, ValueError):  # SettingsError, ModelLoadError: the user's to mend
            return 2
        log.exception("the core ended")
        return 1
    return 0


def _serve(channels: Channels, config: CoreConfig, status: CoreStatus) -> None:
    recorder = EventRecorder()

    def listeners(groups: Sequence[KVGroupSpec]) -> list[BlockListener | None]:
        if not config.settings.kv_events_endpoint:
            return [None] * len(groups)
        return [recorder.listener(group) for group in range(len(groups))]

    core = build_core(
        config.settings,
        Path(config.model_dir),
        watcher=StepClock(status),
        listeners=listeners,
    )
    # What exists now lives as long as the process: never walk it again.
    gc.collect()
    gc.freeze()
    reporters: list[AfterStep] = []
    if config.settings.kv_events_endpoint:
        reporters.append(BlockEvents(core, config, recorder))
    service = CoreService(
        core, channels, status, num_clients=config.num_clients, after_step=reporters
    )
    try:
        service.run()
    finally:
        for reporter in reporters:
            reporter.close()
        service.close()


if __name__ == "__main__":
    sys.exit(main())
