"""One run of `kvasir up`: from deployments to a served URL, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kvasir.cli.local.display import Display
from kvasir.cli.local.local_fleet import plan_fleet
from kvasir.cli.local.log_file import LogFile
from kvasir.cli.local.ports import require_free
from kvasir.cli.local.process_supervisor import Supervisor
from kvasir.resource import LLMDeployment


def default_log_dir(port: int) -> Path:
    """Return the directory of a run's log; two runs cannot have one port, so not one log either."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "kvasir" / f"up-{port}"


async def run(deployments: Sequence[LLMDeployment], *, host: str, port: int, log_dir: Path) -> None:
    """Serve `deployments` until SIGINT or SIGTERM; a second signal ends it at once.

    Raises PortError, GPUShortageError, FleetError and OSError.
    """
    require_free(host, port)
    console = Console(stderr=True)
    log = LogFile(log_dir / "up.log")
    try:
        with tempfile.TemporaryDirectory(prefix="kvasir-up-") as runtime:
            fleet = plan_fleet(deployments, host=host, port=port, runtime_dir=Path(runtime))
            display = Display(fleet, log, console)
            supervisor = Supervisor(
                fleet,
                on_change=display.changed,
                on_ready=display.ready,
                on_exit=display.exited,
                on_line=display.line,
            )
            stop = _stop_on_signal(supervisor, display)
            display.start(supervisor)
            try:
                await supervisor.run(stop)
            finally:
                display.close()
    finally:
        log.close()


def _stop_on_signal(supervisor: Supervisor, display: Display) -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second kills what still runs."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
            return
        stop.set()
        display.close()
        display.say("Stopping: running requests may finish; Ctrl-C again ends them now.")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop
