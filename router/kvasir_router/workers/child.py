"""A forked process becomes a worker or the index process."""

import ctypes
import os
import signal
import socket
import sys
from typing import NoReturn

import structlog
import uvloop

from kvasir.certificates import TlsError
from kvasir.cli.errors import EXIT_FAILED, EXIT_USAGE
from kvasir_router.discovery.specs import DiscoveryError
from kvasir_router.store_error import StoreError
from kvasir_router.workers.control_channel import Control
from kvasir_router.workers.index_process import IndexProcess
from kvasir_router.workers.shared_state import Shared
from kvasir_router.workers.worker_process import RouterWorker
from kvasir_router.yaml_file import YamlFileError

INDEX = -1
_SET_PARENT_DEATH_SIGNAL, _SET_NAME = 1, 15  # prctl(2)


def become(
    shared: Shared,
    slot: int,
    column: int,
    control: socket.socket,
    listener: socket.socket,
    parent: int,
) -> NoReturn:
    """Run worker `slot`, or the index process, to its end; then end this process. It dies with the
    supervisor, `parent`."""
    status = EXIT_FAILED
    try:
        name = "index" if slot == INDEX else f"worker{slot}"
        prctl = ctypes.CDLL(None).prctl
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        prctl(_SET_NAME, f"router-{name}".encode())  # as `ps` and `top` show it
        if os.getppid() == parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            structlog.contextvars.bind_contextvars(process=name)
            uvloop.run(_run(shared, slot, column, Control(control, listener)))
            status = 0
    except (DiscoveryError, YamlFileError, TlsError, StoreError) as error:
        _refuse(error)
        status = EXIT_USAGE
    except OSError as error:
        _refuse(error)
    except BaseException:
        structlog.get_logger("kvasir_router.workers").exception("a process failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _refuse(error: Exception) -> None:
    """Say why the process cannot begin, in one write: all of them may say it at the same time."""
    sys.stderr.write(f"kvasir router: {error}\n")


async def _run(shared: Shared, slot: int, column: int, control: Control) -> None:
    control.attach()
    if slot == INDEX:
        await IndexProcess(shared, column).run(control)
    else:
        await RouterWorker(shared, slot, column).run(control)
