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
