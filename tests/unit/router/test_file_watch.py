"""Files that change, on a real file system."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
import structlog
import watchfiles

from kvasir_router import file_watch
from kvasir_router.file_watch import FileWatch, FollowedFile


@pytest.fixture
async def count(tmp_path: Path):
    """Start to watch files there; returns a function that waits for the next change."""
    tasks = []

    async def start(*names: str):
        watch = FileWatch(*(tmp_path / name for name in names))
        watch.changed()
        changes: asyncio.Queue[None] = asyncio.Queue()

        async def follow() -> None:
            async for _ in watch.looks():
                if watch.changed():
                    changes.put_nowait(None)

        tasks.append(asyncio.create_task(follow()))

        async def changed() -> None:
            await asyncio.wait_for(changes.get(), 10)

        return changed

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_a_file_that_is_written_replaced_or_removed_has_changed(count, tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("1")
    changed = await count("a")
    path.write_text("22")
    await changed()
    (tmp_path / "new").write_text("33")
    (tmp_path / "new").replace(path)
    await changed()
    path.unlink()
    await changed()


@pytest.mark.slow
async def test_a_mounted_secret_s_folder_is_swapped(count, tmp_path) -> None:
    """As a kubelet does it: file -> ..data/file, ..data -> a folder of its time."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(version)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys").symlink_to("..data/keys")
    changed = await count("keys")
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    await changed()


@pytest.mark.slow
async def test_any_of_several_files(count, tmp_path) -> None:
    changed = await count("cert", "key")
    for name in ("cert", "key"):
        (tmp_path / name).write_text(name)
        await changed()


async def test_where_the_system_watches_nothing_files_are_polled(
    count, tmp_path, monkeypatch
) -> None:
    real = watchfiles.awatch

    def out_of_instances(*paths, force_polling=None, **options):
        if not force_polling:
            raise OSError(24, "Too many open files (os error 24)")
        return real(*paths, force_polling=True, **options)

    monkeypatch.setattr(file_watch, "awatch", out_of_instances)
    with structlog.testing.capture_logs() as logs:
        changed = await count("a")
        await asyncio.sleep(0)
        (tmp_path / "a").write_text("1")
        await changed()
    assert "polled" in logs[0]["event"]


def test_a_file_that_others_may_read_now_has_changed(tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("1")
    watch = FileWatch(path)
    assert watch.changed()
    assert not watch.changed()
    path.chmod(0o640)
    assert watch.changed()


def test_other_content_of_the_same_size_and_time_has_changed(tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("1")
    before = path.stat()
    watch = FileWatch(path)
    watch.changed()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # some kernels count it in ticks
        path.write_text("2")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert watch.changed()


class TestFollowed:
    """A file that is followed."""

    @pytest.fixture
    def follow(self, tmp_path):
        """Follow a file whose reading does what the test says."""
        path = tmp_path / "a"
        path.write_text("1")
        told: list[bool] = []
        read: list = [path.read_text]
        file: FollowedFile[str] = FollowedFile(
            "test file", FileWatch(path), lambda: read[0](), told.append, (OSError,)
        )
        return file, path, read, told

    async def test_one_that_could_not_be_read_is_read_again_though_it_looks_the_same(
        self, follow, monkeypatch
    ) -> None:
        """As when the process had no descriptor left: nothing about the file tells that."""
        file, path, read, told = follow
        used: list[str] = []
        await file.load()
        path.write_text("2")

        def fail() -> str:
            raise OSError(24, "Too many open files")

        read[0] = fail
        await file.look(used.append)
        await file.look(used.append)
        assert told == [True, False], "not again at once"
        read[0] = path.read_text
        monkeypatch.setattr(file, "_retry_at", 0.0)
        await file.look(used.append)
        await file.look(used.append)
        assert used == ["2"]
        assert told == [True, False, True]

    async def test_one_that_hangs_is_told_of_and_read_when_it_goes_on(
        self, follow, monkeypatch
    ) -> None:
        monkeypatch.setattr(file_watch, "_SLOW_SECONDS", 0.1)
        file, path, read, told = follow
        used: list[str] = []
        await file.load()
        path.write_text("2")
        go, said = threading.Event(), asyncio.Event()

        def hang() -> str:
            assert go.wait(20)
            return path.read_text()

        def report(good: bool) -> None:
            told.append(good)
            said.set()

        read[0], file._reported = hang, report
        look = asyncio.create_task(file.look(used.append))
        await asyncio.wait_for(said.wait(), 10)
        assert told == [True, False]
        assert not look.done()
        go.set()
        await look
        assert used == ["2"]
        assert told == [True, False, True]

    async def test_content_that_cannot_be_used_is_tried_again(self, follow, monkeypatch) -> None:
        file, path, _, told = follow
        await file.load()
        path.write_text("2")
        used: list[str] = []

        def fail(content: str) -> None:
            raise ZeroDivisionError

        with structlog.testing.capture_logs() as logs:
            await file.look(fail)
        assert isinstance(logs[0]["exc_info"], ZeroDivisionError)
        monkeypatch.setattr(file, "_retry_at", 0.0)
        await file.look(used.append)
        assert used == ["2"]
        assert told == [True, False, True]


async def test_a_router_with_a_bad_file_serves_and_says_so(
    start_router, start_replica, model_entry, client, eventually
) -> None:
    router = await start_router([model_entry("m", await start_replica())])
    assert (await client.get(f"{router.url}/ready")).json() == {"status": "ready"}
    router.config.write_text("models: [")
    await eventually(lambda: router.server.metrics.stale["discovery"])
    for url in (router.url, router.admin_url):
        ready = await client.get(f"{url}/ready")
        assert ready.status_code == 200
        assert "discovery" in ready.json()["warnings"][0]
    assert await router.metric("stale_files", file="discovery") == 1
    assert (await client.post(f"{router.url}/score", json={"model": "m"})).status_code == 200


def test_further_files_are_looked_at_while_they_are_wanted(tmp_path: Path) -> None:
    main, key = tmp_path / "main", tmp_path / "key"
    main.write_text("a")
    key.write_text("a")
    watch = FileWatch(main)
    assert watch.changed()
    watch.watch_too((key,))
    assert not watch.changed()
    key.write_text("longer")
    assert watch.changed()
    main.write_text("longer")
    watch.watch_too(())
    assert watch.changed()  # what came before is not forgotten
    key.write_text("longer still")
    assert not watch.changed()
