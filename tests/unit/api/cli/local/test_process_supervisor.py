from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kvasir.cli.local import process_supervisor as module
from kvasir.cli.local.child_process import ChildSpec
from kvasir.cli.local.local_fleet import Fleet
from kvasir.cli.local.ports import free_ports
from kvasir.cli.local.process_supervisor import MAX_RESTARTS, FleetError, Member, Supervisor

pytestmark = pytest.mark.slow

SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("serving", flush=True)
"""
FOREVER = SERVER + "server.serve_forever()"
ONE_ANSWER = SERVER + "server.handle_request(); sys.exit('it breaks')"


def process(name: str, code: str, port: int) -> ChildSpec:
    command = (sys.executable, "-S", "-c", code, str(port))
    return ChildSpec(name, command, os.environ, f"http://127.0.0.1:{port}/ready", grace=10)


class Record:
    """What a supervisor reported."""

    def __init__(self, engine_code: str, router_code: str = FOREVER) -> None:
        engine, router = free_ports(2)
        self.fleet = Fleet(
            [process("e", engine_code, engine)], process("router", router_code, router), "", [], ""
        )
        self.states: list[tuple[str, str]] = []
        self.exits: list[tuple[str, int]] = []
        self.lines: list[tuple[str, str]] = []
        self.ready = asyncio.Event()

    def supervisor(self) -> Supervisor:
        return Supervisor(
            self.fleet,
            on_change=lambda member: self.states.append((member.spec.name, member.state)),
            on_ready=self.ready.set,
            on_exit=self._exited,
            on_line=lambda name, line: self.lines.append((name, line)),
        )

    def _exited(self, member: Member, code: int) -> None:
        self.exits.append((member.spec.name, code))


async def test_states_in_order_and_the_router_stopped_first() -> None:
    record, stop = Record(FOREVER), asyncio.Event()
    running = asyncio.create_task(record.supervisor().run(stop))
    await record.ready.wait()
    stop.set()
    await running
    assert record.states[:2] == [("e", "starting"), ("router", "starting")]
    assert set(record.states[2:4]) == {("e", "ready"), ("router", "ready")}
    assert record.states[4:] == [
        ("router", "stopping"),
        ("router", "stopped"),
        ("e", "stopping"),
        ("e", "stopped"),
    ]
    assert record.exits == []
    assert sorted(record.lines) == [("e", "serving"), ("router", "serving")]


async def test_a_process_that_dies_again_and_again_ends_the_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_BACKOFF", 0.01)
    record = Record(ONE_ANSWER)
    with pytest.raises(FleetError) as error:
        await record.supervisor().run(asyncio.Event())
    assert str(error.value) == (
        f"e exited with status 1 {MAX_RESTARTS + 1} times within a minute; its last lines:\n"
        "  serving\n  it breaks"
    )
    assert record.exits == [("e", 1)] * (MAX_RESTARTS + 1)


async def test_deaths_far_apart_do_not_end_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(module, "RESTART_WINDOW", 0.0)
    record, stop = Record(ONE_ANSWER), asyncio.Event()
    running = asyncio.create_task(record.supervisor().run(stop))
    while len(record.exits) <= MAX_RESTARTS + 1:
        await asyncio.wait([running], timeout=0.05)
        assert not running.done()
    stop.set()
    await running


async def test_stopping_while_a_restart_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_BACKOFF", 600)
    record, stop = Record(ONE_ANSWER), asyncio.Event()
    running = asyncio.create_task(record.supervisor().run(stop))
    while ("e", "restarting") not in record.states:
        await asyncio.wait([running], timeout=0.05)
    stop.set()
    await running
    assert record.states[-1] == ("router", "stopped")


async def test_stopping_while_a_restarted_process_is_not_ready_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_FIRST_BACKOFF", 0.01)
    pid = tmp_path / "pid"
    second = (
        f"import os, pathlib; pid = pathlib.Path({str(pid)!r})\n"
        "if pid.exists(): pid.write_text(str(os.getpid())); import time; time.sleep(600)\n"
        "pid.touch()\n"
    )
    record, stop = Record(second + ONE_ANSWER), asyncio.Event()
    running = asyncio.create_task(record.supervisor().run(stop))
    while not (pid.exists() and pid.read_text()):
        await asyncio.wait([running], timeout=0.05)
    stop.set()
    await running
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert record.states[-1] == ("e", "stopped")


async def test_a_signal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(FleetError, match=r"^e was ended by signal 9 before it was ready$"):
        await record.supervisor().run(asyncio.Event())


async def test_a_process_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    # The engine and the router start at once.
    with pytest.raises(FleetError, match=r"^(e|router) cannot be started: .*unavailable"):
        await Record(FOREVER).supervisor().run(asyncio.Event())
