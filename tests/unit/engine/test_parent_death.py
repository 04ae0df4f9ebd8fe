"""A child does not outlive its parent, also one that was already orphaned."""

from __future__ import annotations

import signal
import subprocess
import sys

CHILD = """
import sys, time
from kvasir_engine.parent_death import die_with_parent
die_with_parent(int(sys.argv[1]))
print("alive", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_the_child_of_a_killed_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    assert parent.stdout.readline() == "alive\n"
    parent.kill()
    parent.wait()
    # The pipe ends when its last writer, the child, is gone.
    assert parent.stdout.read() == ""
    parent.stdout.close()


def test_a_process_whose_parent_is_another_kills_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
