from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.core.channels import Channels
from kvasir_engine.server.process.router_interfaces import router_interfaces
from kvasir_engine.server.reports.watch_page import WatchPage


async def test_a_watcher_in_the_first_process_hears_the_others(
    start_server: Any, tmp_path: Path, until: Any
) -> None:
    channels = Channels(tmp_path)
    WatchPage(channels.watch, create=True)
    one, other = [(await start_server()).app.state.server for _ in range(2)]
    report = PromptReport([1], [1], bytes(16))
    async with (
        router_interfaces(one, channels, grpc_port=0, index=0),
        router_interfaces(other, channels, grpc_port=0, index=1),
    ):
        await until(lambda: one.reporter is not None and other.reporter is not None)
        with one.prompt_reporter.subscribe() as subscription:
            await until(lambda: other.prompt_reporter.watched)
            other.prompt_reporter.deliver(report)
            [heard], _ = await subscription.next_reports()
    assert heard == report


async def test_a_port_that_is_taken_ends_it(
    start_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channels = Channels(tmp_path)
    WatchPage(channels.watch, create=True)
    state = (await start_server()).app.state.server
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with router_interfaces(state, channels, grpc_port=port, index=0) as task:
            await asyncio.wait({task}, timeout=10)
            assert task.done()
    logged = "".join(capsys.readouterr())
    assert f"127.0.0.1:{port}" in logged
    assert "--grpc-port" in logged


async def test_while_the_core_loads_nothing_is_open_and_the_end_is_clean(
    start_server: Any, tmp_path: Path
) -> None:
    channels = Channels(tmp_path)
    WatchPage(channels.watch, create=True)
    state = (await start_server(ready=False)).app.state.server
    for index in (0, 1):
        async with router_interfaces(state, channels, grpc_port=0, index=index):
            await asyncio.sleep(0.01)
            assert state.reporter is None
