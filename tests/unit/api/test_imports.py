"""What importing the shared package costs, and that it stays free of the parts' weight."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

API = Path(__file__).parents[3] / "api"
FORBIDDEN = ("torch", "transformers", "fastapi", "kopf", "kvasir_engine", "kvasir_router", "numpy")
FORBIDDEN += ("kubernetes", "aiohttp")


def imported(module: str) -> set[str]:
    """Names of the top-level modules that a fresh interpreter has after importing `module`."""
    code = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(API)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_the_package_itself_brings_nothing() -> None:
    own = imported("kvasir") - imported("sys")
    assert own == {"kvasir"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        *(
            "resource",
            "models.hf_config",
            "models.fit.fit_plan",
            "models.fit.replica_fit",
            "models.download.model_download",
            "logs",
        ),
        *("cli.main", "cli.download", "cli.status", "cli.deployment_status.tree", "kube"),
        *("cli.local.run_local", "cli.conversation.chat_session"),
        *("cli.kubectl.plugin_group", "cli.kubectl.why_command", "cli.kubectl.logs_command"),
        *("cli.kubectl.convert.conversion", "cli.kubectl.bundle.bundle_command"),
    ],
)
def test_no_part_brings_the_weight_of_another(module: str) -> None:
    assert imported(f"kvasir.{module}").isdisjoint(FORBIDDEN)
