"""Load streams over gRPC, from a stand-in whose silence a test commands."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from kvasir.cli.local.ports import free_ports
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir_router.feeds import load_stream
from kvasir_router.feeds.load_stream import REPORT_SECONDS, LoadFeed
from kvasir_router.feeds.prompt_stream import follow_prompt_reports
from kvasir_router.fleet.replica import LoadStreamState, Replica
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.tasks import SupervisedTasks

BEAT = 0.05


class Engine(engine_pb2_grpc.EngineServicer):
    """Speak every BEAT seconds unless `silent`."""

    def __init__(self, port: int) -> None:
        self.load = pb.Load(running=3, waiting=2, inflight_tokens=700, kv_usage=0.25, ready=True)
        self.silent = False
        self.reports: list[pb.PromptReports] = []
        self.refuses = False
        self.metadata: list[dict[str, str]] = []
        self.calls = 0
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")

    async def start(self) -> "Engine":
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(None)

    async def WatchLoad(self, message: pb.WatchLoadRequest, context: Any) -> None:
        self.calls += 1
        self.metadata.append(dict(context.invocation_metadata()))
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
        while True:
            if not self.silent:
                await context.write(self.load)
            await asyncio.sleep(BEAT)

    async def WatchPrompts(self, message: pb.WatchPromptsRequest, context: Any) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        for report in self.reports:
            await context.write(report)
        await asyncio.Event().wait()


@pytest.fixture
async def start_engine() -> AsyncIterator[Callable[..., Any]]:
    started: list[Engine] = []

    async def start(port: int = 0) -> Engine:
        started.append(await Engine(port or free_ports(1)[0]).start())
        return started[-1]

    yield start
    for engine in started:
        await engine.stop()


@pytest.fixture
async def listen(make_replica, blocks) -> AsyncIterator[Callable[..., Replica]]:
    tasks: list[asyncio.Task[None]] = []

    def begin(
        engine: Engine, secret: str | FleetSecrets | None = None, **callbacks: Any
    ) -> Replica:
        secrets = secret if isinstance(secret, FleetSecrets) else FleetSecrets(secret)
        replica: Replica = make_replica(grpc_port=engine.port)
        callbacks = {"spoke": lambda *_: None, "connected": lambda *_: None} | callbacks
        feed = LoadFeed(
            replica, engine.port, secrets, None, sink=blocks, tasks=SupervisedTasks(), **callbacks
        )
        tasks.append(asyncio.create_task(feed.run()))
        return replica

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_every_message_is_the_replicas_load(start_engine, listen, eventually) -> None:
    engine = await start_engine()
    replica = listen(engine)
    assert not replica.load.stale, "nothing was heard yet, so nothing is late"
    await eventually(lambda: replica.load.report is not None)
    report = replica.load.report
    assert (report.running, report.waiting, report.inflight_tokens) == (3, 2, 700)
    assert report.kv_usage == 0.25
    assert replica.load.report_every == REPORT_SECONDS
    assert replica.load_stream_state is LoadStreamState.READY
    engine.load.running = 9
    await eventually(lambda: replica.load.report.running == 9)


async def test_the_secret_is_in_the_metadata(start_engine, listen, eventually) -> None:
    engine = await start_engine()
    listen(engine, "s3cret")
    await eventually(lambda: len(engine.metadata) == 2)
    assert all(each["x-kvasir-fleet-secret"] == "s3cret" for each in engine.metadata)


async def test_another_secret_in_front_begins_the_stream_anew(
    start_engine, listen, eventually, tmp_path
) -> None:
    (tmp_path / "secret").write_text("old")
    secrets = FleetSecrets(path=tmp_path / "secret")
    await secrets.load()
    engine = await start_engine()
    replica = listen(engine, secrets)
    await eventually(lambda: len(engine.metadata) == 2)
    for text, streams in (("old\nnew", 2), ("new\nold", 4), ("new", 4)):
        (tmp_path / "secret").write_text(text)
        await secrets.load()
        before = replica.load.report
        await eventually(lambda before=before: replica.load.report is not before)
        await eventually(lambda streams=streams: len(engine.metadata) == streams)
    sent = [each["x-kvasir-fleet-secret"] for each in engine.metadata]
    assert sent == ["old", "old", "new", "new"]
    assert not replica.feeds["load_stream_ended"]
    assert replica.load_stream_state is LoadStreamState.READY


@pytest.mark.parametrize("state", [{"draining": True}, {"ready": False}])
async def test_an_engine_that_takes_nothing_says_so(
    start_engine, listen, eventually, state
) -> None:
    engine = await start_engine()
    replica = listen(engine)
    await eventually(lambda: replica.load_stream_state is LoadStreamState.READY)
    for name, value in state.items():
        setattr(engine.load, name, value)
    await eventually(lambda: replica.load_stream_state is LoadStreamState.NOT_READY)


async def test_an_engine_that_ends_soon_says_so(start_engine, listen, eventually) -> None:
    engine = await start_engine()
    replica = listen(engine)
    await eventually(lambda: replica.load_stream_state is LoadStreamState.READY)
    engine.load.leaving, engine.load.ready = True, False
    await eventually(lambda: replica.load_stream_state is LoadStreamState.LEAVING)
    engine.load.leaving, engine.load.ready = False, True
    await eventually(lambda: replica.load_stream_state is LoadStreamState.READY)


@pytest.mark.slow
async def test_a_restarted_engine_is_heard_again_soon(start_engine, listen, eventually) -> None:
    begun: list[str] = []
    first = await start_engine()
    replica = listen(first, connected=lambda replica: begun.append(replica.id))
    await eventually(lambda: len(begun) == 1)
    replica.probe_now.clear()
    await first.stop()
    await eventually(replica.probe_now.is_set)
    await asyncio.sleep(1.0)  # refused some times meanwhile
    second = await start_engine(first.port)
    # gRPC's own pause after failures is a second at first, and grows to minutes
    await eventually(lambda: second.calls == 1, 1.0)
    await eventually(lambda: len(begun) == 2)


async def test_a_connection_without_a_word_is_replaced(
    start_engine, listen, eventually, monkeypatch
) -> None:
    monkeypatch.setattr("kvasir_router.feeds.load_stream.ATTEMPT_SECONDS", 0.3)
    engine = await start_engine()
    replica = listen(engine)
    await eventually(lambda: replica.load_stream_state is LoadStreamState.READY)
    engine.silent = True
    await eventually(lambda: engine.calls >= 3)
    assert replica.feeds["load_stream_ended"] >= 2
    engine.silent = False
    engine.load.running = 77
    await eventually(lambda: replica.load.report.running == 77)


async def test_a_process_that_stood_still_keeps_the_connection(
    start_engine, listen, eventually, monkeypatch
) -> None:
    monkeypatch.setattr("kvasir_router.feeds.load_stream.ATTEMPT_SECONDS", 0.5)
    engine = await start_engine()
    replica = listen(engine)
    await eventually(lambda: replica.load_stream_state is LoadStreamState.READY)
    for _ in range(2):
        time.sleep(1.0)  # noqa: ASYNC251 - the loop is what stands still
        before = replica.load.report
        await eventually(lambda before=before: replica.load.report is not before)
    assert engine.calls == 1
    assert not replica.feeds["load_stream_ended"]


async def test_a_refusal_is_asked_again(start_engine, listen, eventually) -> None:
    engine = await start_engine()
    engine.refuses = True
    replica = listen(engine)
    await eventually(lambda: engine.calls >= 2)
    assert replica.load_stream_state is LoadStreamState.NONE
    engine.refuses = False
    await eventually(lambda: replica.load_stream_state is LoadStreamState.READY)


async def test_prompt_reports_go_to_the_sink(start_engine, listen, eventually, blocks) -> None:
    engine = await start_engine()
    report = pb.PromptReport(text_hashes=[2**64 - 1, 5], kv_blocks=[2, 4], kv_hashes=b"h" * 32)
    engine.reports = [pb.PromptReports(reports=[report] * 20, dropped=3)]
    replica = listen(engine)
    await eventually(lambda: len(blocks.reports) == 20)
    assert blocks.reports[0] == PromptReport([2**64 - 1, 5], [2, 4], b"h" * 32)
    assert replica.feeds["prompt_reports_dropped"] == 3


async def test_prompt_reports_go_on_after_a_defect(
    start_engine, listen, eventually, blocks, monkeypatch
) -> None:
    real, raised = follow_prompt_reports, []

    async def follow(*arguments: Any) -> None:
        if not raised:
            raised.append(True)
            raise ZeroDivisionError
        await real(*arguments)

    monkeypatch.setattr(load_stream, "follow_prompt_reports", follow)
    engine = await start_engine()
    engine.reports = [pb.PromptReports(reports=[pb.PromptReport(text_hashes=[5])])]
    listen(engine)
    await eventually(lambda: len(blocks.reports) == 1)
    assert engine.calls == 1, "on the same connection"
