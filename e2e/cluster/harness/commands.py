"""Running tools: what they said is part of the error when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.errors import HarnessError

Argument = str | Path


def run(
    *command: Argument,
    input: str | None = None,  # noqa: A002 (as in subprocess.run)
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 600,
) -> str:
    """Return what `command` printed. `env` is added to the environment. Raises HarnessError."""
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            input=input,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise HarnessError(
            f"{arguments[0]} is not installed; e2e/cluster/packages.sh installs what is needed"
        ) from None
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{_shown(arguments)} did not end within {timeout:.0f} s") from None
    if done.returncode:
        raise HarnessError(
            f"{_shown(arguments)} failed ({done.returncode}): {_tail(done.stderr or done.stdout)}"
        )
    return done.stdout


def attempt(*command: Argument) -> bool:
    """Return True if `command` succeeded; for removing what may not be there."""
    return not subprocess.run(
        [str(part) for part in command],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).returncode


def missing(tools: Sequence[str]) -> list[str]:
    """Return those of `tools` that are not on the path; /usr/sbin counts."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [tool for tool in tools if shutil.which(tool, path=path) is None]


def wait_for(
    what: str, condition: Callable[[], object], seconds: float, every: float = 0.1
) -> None:
    """Return once `condition()` is true. Raises HarnessError after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise HarnessError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(every)


def _shown(arguments: Sequence[str]) -> str:
    text = " ".join(arguments)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _tail(text: str) -> str:
    return text.strip()[-4000:]
