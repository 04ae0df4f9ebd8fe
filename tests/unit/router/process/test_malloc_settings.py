"""Memory of one body is there for the next."""

import platform
import subprocess
import sys

import pytest

_BODIES = """
import resource
from kvasir_router.process import malloc_settings

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        bodies = [b"x" * 1_000_000 for _ in range(4)]
        del bodies
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

malloc_settings.settle()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_large_bodies_do_not_fault_their_pages_in_anew() -> None:
    command = [sys.executable, "-c", _BODIES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 1000  # 100 * 4 * 244 pages otherwise


_LEFT_FREE = """
import asyncio
import os
from pathlib import Path
from kvasir_router.process import malloc_settings

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main():
    malloc_settings.GIVE_BACK_SECONDS = 0.01
    malloc_settings.settle()
    before = resident()
    bodies = [b"x" * 2_000_000 for _ in range(24)]
    del bodies
    left = resident() - before
    task = asyncio.create_task(malloc_settings.give_back_freed())
    for _ in range(6000):
        await asyncio.sleep(0.01)
        if resident() - before < left / 10:
            break
    print(left, resident() - before)
    task.cancel()

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_what_no_body_uses_again_is_given_back() -> None:
    command = [sys.executable, "-c", _LEFT_FREE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    left, after = map(int, done.stdout.split())
    assert left > 40_000_000
    assert after < left / 10
