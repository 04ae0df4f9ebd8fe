"""Processes are ended by whoever reads their table, and only they are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.commands import wait_for
from harness.processes import Process, ProcessTable, guard


def test_another_reader_of_the_table_ends_what_was_started(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    started = table.spawn("sleeper", "sleep", "300")
    assert table.find("sleeper") == started
    ProcessTable(tmp_path).kill_all()
    assert not started.is_alive()
    assert table.names() == []


def test_a_pid_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    other = table.spawn("other", "sleep", "300")
    stale = Process("stale", other.pid, other.started - 1)
    assert not stale.is_alive()
    stale.signal(9)
    assert other.is_alive()
    table.kill_all()


def test_what_it_said_is_in_its_log(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    process = table.spawn("speaker", "sh", "-c", "echo out; echo $WORD >&2", env={"WORD": "err"})
    wait_for("its end", lambda: not process.is_alive(), 30)
    assert table.log("speaker").split() == ["out", "err"]


LEADER_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
ctypes.CDLL(None).syscall(60, 0)  # SYS_exit ends the calling thread alone
"""


def test_a_process_lives_while_one_of_its_threads_does(tmp_path: Path) -> None:
    """Its first thread is a zombie by then; the others still hold its ports and files."""
    table = ProcessTable(tmp_path)
    process = table.spawn("threads", sys.executable, "-c", LEADER_ENDS)

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    wait_for("the end of the first thread", lambda: state() == "Z", 30)
    assert process.is_alive()
    table.kill_all()
    assert not process.is_alive()


def test_nothing_outlives_its_guards_caller(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    process = table.spawn("sleeper", "sleep", "300")
    with guard(tmp_path) as watcher:
        assert process.is_alive()
        # What the kernel does with the pipe of a caller that was killed.
        watcher.communicate()
    assert not process.is_alive()


def test_this_process_is_not_taken_for_a_child() -> None:
    assert Process.of("me", os.getpid()).is_alive()
