"""Hand on the fixtures of tests/support."""

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
