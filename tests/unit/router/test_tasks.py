"""Supervised tasks: exceptions are logged, what runs for ever is started again."""

import ast
import asyncio
from pathlib import Path

import pytest
import structlog

from kvasir_router import tasks as tasks_module
from kvasir_router.tasks import SupervisedTasks

ROUTER = Path(__file__).parents[3] / "router/kvasir_router"


def test_nobody_else_starts_tasks() -> None:
    found = []
    for path in ROUTER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            if name in ("create_task", "ensure_future"):
                found.append(path.relative_to(ROUTER).as_posix())
    assert found == ["tasks.py"]


@pytest.fixture
def no_backoff(monkeypatch) -> None:
    monkeypatch.setattr(tasks_module, "_FIRST_BACKOFF", 0.0)


async def test_an_exception_is_logged_with_its_traceback() -> None:
    tasks = SupervisedTasks()

    async def fail() -> None:
        raise ZeroDivisionError("why")

    with structlog.testing.capture_logs() as logs:
        task = tasks.run("short", fail())
        await asyncio.wait({task})
        await asyncio.sleep(0)
    [entry] = logs
    assert entry["task"] == "short"
    assert isinstance(entry["exc_info"], ZeroDivisionError)
    assert tasks.failures == {"short": 1}


async def test_a_result_is_whoever_waits_s_and_a_cancelled_task_is_no_failure() -> None:
    tasks = SupervisedTasks()

    async def seven() -> int:
        return 7

    assert await tasks.run("seven", seven()) == 7
    tasks.run("long", asyncio.sleep(3600))
    tasks.keep("longer", lambda: asyncio.sleep(3600), required=True)
    await asyncio.sleep(0)
    await tasks.stop()
    assert not tasks.failures
    assert not tasks.down


async def test_what_runs_for_ever_is_started_again(no_backoff) -> None:
    tasks, starts, lives = SupervisedTasks(), [], asyncio.Event()

    async def work() -> None:
        starts.append(set(tasks.down))
        if len(starts) < 4:
            raise ZeroDivisionError
        lives.set()
        await asyncio.Future()

    with structlog.testing.capture_logs() as logs:
        tasks.child().keep("work", work, required=True)
        async with asyncio.timeout(10):
            await lives.wait()
    assert starts == [set()] * 4
    assert tasks.failures == {"work": 3}
    [entry] = logs
    assert entry["exc_info"]
    assert entry["again_in_seconds"] == 0.0


async def test_one_that_ends_by_mistake_is_started_again_too(no_backoff) -> None:
    tasks, starts, lives = SupervisedTasks(), [], asyncio.Event()

    async def work() -> None:
        starts.append(len(starts))
        if len(starts) == 1:
            return
        if len(starts) == 2:
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        lives.set()
        await asyncio.Future()

    tasks.keep("work", work)
    async with asyncio.timeout(10):
        await lives.wait()
    assert tasks.failures == {"work": 2}
    await tasks.stop()
    assert not tasks


async def test_what_callbacks_raise_is_counted_and_logged() -> None:
    tasks, done = SupervisedTasks(), asyncio.Event()
    tasks.watch_loop()

    def fail() -> None:
        asyncio.get_running_loop().call_soon(done.set)
        raise ZeroDivisionError("why")

    with structlog.testing.capture_logs() as logs:
        asyncio.get_running_loop().call_soon(fail)
        await done.wait()
    assert tasks.failures == {tasks_module.LOOP: 1}
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)


def test_a_defect_that_comes_again_and_again_is_counted_and_seldom_logged(monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr("kvasir_router.tasks.time.monotonic", lambda: now)
    tasks = SupervisedTasks()
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            tasks.child().defect("request", ZeroDivisionError())
        now += 10.0
        tasks.defect("request", ZeroDivisionError())
    assert tasks.failures["request"] == 101
    assert [entry.get("unlogged") for entry in logs] == [None, 99]


async def test_a_router_whose_required_task_is_down_is_not_ready(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    router = await start_router([model_entry("m", await start_replica())])
    gateway = router.server.gateway
    good = gateway.queue.serve_and_expire

    def broken() -> None:
        raise ZeroDivisionError("a defect")

    gateway.queue.serve_and_expire = broken
    await eventually(lambda: "queue" in gateway.tasks.down)
    ready = await client.get(f"{router.url}/ready")
    assert ready.status_code == 503
    assert "queue" in ready.json()["reason"]
    gateway.queue.serve_and_expire = good
    await eventually(lambda: not gateway.tasks.down)
    assert (await client.get(f"{router.url}/ready")).status_code == 200
    assert await router.metric("task_failures_total", task="queue") >= 1
