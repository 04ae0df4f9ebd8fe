"""Hand on the fixtures of tests/support; run tests of the marker `source_form`."""

import os
import subprocess
import sys

import pytest
from support.router import (
    client,
    eventually_fixture,
    model_entry_fixture,
    post_fixture,
    pytest_asyncio_loop_factories,
    start_process,
    start_replica,
    start_router,
    stream_until,
    write_config_fixture,
)
from support.token_issuer import start_with_tokens, token_issuer

from kvasir_router import compiled

__all__ = [
    "client",
    "eventually_fixture",
    "model_entry_fixture",
    "post_fixture",
    "pytest_asyncio_loop_factories",
    "start_process",
    "start_replica",
    "start_router",
    "start_with_tokens",
    "stream_until",
    "token_issuer",
    "write_config_fixture",
]


@pytest.fixture(autouse=True)
def _patience_with_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a small file may take longer than one that is told of as slow."""
    monkeypatch.setattr("kvasir_router.file_watch._SLOW_SECONDS", 30.0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of the marker `source_form` by a Python that reads the sources, where this one
    runs compiled code: that calls its own methods without a look-up, so none can be replaced."""
    if not compiled.in_use() or pyfuncitem.get_closest_marker("source_form") is None:
        return None
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "--rootdir",
        str(pyfuncitem.config.rootpath),
    ]
    ran = subprocess.run(
        [*command, pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env=os.environ | {compiled.SWITCH: "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return True
