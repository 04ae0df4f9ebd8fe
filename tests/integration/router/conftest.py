"""Hand on the fixtures of tests/support."""

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

__all__ = [
    "client",
    "eventually_fixture",
    "model_entry_fixture",
    "post_fixture",
    "pytest_asyncio_loop_factories",
    "start_process",
    "start_replica",
    "start_router",
    "stream_until",
    "write_config_fixture",
]
