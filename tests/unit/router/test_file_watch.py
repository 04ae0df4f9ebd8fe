"""Files that change, on a real file system."""

import asyncio
from pathlib import Path

import pytest
import structlog
import watchfiles

from kvasir_router import file_watch
from kvasir_router.file_watch import FileWatch


@pytest.fixture
async def count(tmp_path: Path):
    """Start to watch files there; returns a function that waits for the next change."""
    tasks = []

    async def start(*names: str):
        watch = FileWatch(*(tmp_path / name for name in names))
        watch.changed()
        changes: asyncio.Queue[None] = asyncio.Queue()

        async def follow() -> None:
            async for _ in watch.changes():
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
