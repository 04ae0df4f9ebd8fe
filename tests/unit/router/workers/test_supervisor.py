"""Which of its processes a supervisor takes for hung."""

import os
import socket
import subprocess
import time
from types import SimpleNamespace

from kvasir_router.workers import supervisor as module
from kvasir_router.workers.shared_memory.load_table import LoadTable
from kvasir_router.workers.supervisor import Child, Supervisor


def test_a_silent_process_is_killed_but_not_for_time_in_which_the_supervisor_stood_still(
    monkeypatch,
) -> None:
    monkeypatch.setattr(module, "HANG_SECONDS", 1.0)
    monkeypatch.setattr(module, "_LATE_SECONDS", 0.6)
    table = LoadTable(1)
    column = table.allocate_column()
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "600"]) as process:
        pidfd = os.pidfd_open(process.pid)
        child = Child(0, process.pid, pidfd, ours, column, time.monotonic(), is_ready=True)
        supervisor = Supervisor(SimpleNamespace(load=table), {}, [child])
        supervisor._kill_silent()
        time.sleep(1.5)  # as if the whole machine stood still: nobody has beaten
        supervisor._kill_silent()
        assert process.poll() is None
        until = time.monotonic() + 30
        while process.poll() is None:
            assert time.monotonic() < until
            supervisor._kill_silent()
            time.sleep(0.05)
        os.close(pidfd)
