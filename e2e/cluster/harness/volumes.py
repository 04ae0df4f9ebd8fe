"""Open the directories of provisioned volumes: `python -m harness.volumes`.

The controller manager's own provisioner makes them for root alone (0750) and knows no fsGroup,
which a real one applies.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

PROVISIONED = Path("/tmp/hostpath_pv")
OPEN = 0o777


def open_new() -> None:
    """Let everybody write to each volume."""
    with suppress(FileNotFoundError):
        for directory in (PROVISIONED, *PROVISIONED.iterdir()):
            if directory.stat().st_mode & OPEN != OPEN:
                directory.chmod(OPEN)


if __name__ == "__main__":
    while True:
        open_new()
        time.sleep(0.2)
