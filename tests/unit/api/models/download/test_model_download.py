"""The way into a volume: what is fetched, what is kept, what goes wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest

from kvasir.model_uri import parse_model_uri
from kvasir.models.cache.layout import STAGING, model_directory
from kvasir.models.cache.use_lock import hold
from kvasir.models.cache.volume import Volume
from kvasir.models.download import fetch
from kvasir.models.download.progress import DownloadPhase, parse_progress
from kvasir.models.download_errors import DownloadError, PermanentError
from kvasir.models.sources.source import Selection

pytestmark = pytest.mark.slow


@pytest.fixture
def listed(web, model_files):
    """The URI of a list of the model's files on a web server."""

    def offer(name: str = "m", files=model_files) -> str:
        entries = [
            {"path": path, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for path, body in files.items()
        ]
        web.files |= {f"{name}/{path}": body for path, body in files.items()}
        web.files[f"{name}/list.json"] = json.dumps({"files": entries}).encode()
        return f"{web.url}/{name}/list.json"

    return offer


def gets(web, path: str) -> int:
    return sum(asked.endswith(path) for asked, _ in web.requests)


def test_a_broken_connection_goes_on_where_it_broke(web, listed, download, contents, model_files):
    uri = listed()
    web.cut = [10**9, 3, 100_000, 50_000]  # the list is whole
    web.fail = [503]
    assert contents(download(uri, parallel=1)) == model_files
    assert [r for _, r in web.requests if r]
    assert web.bytes_sent < sum(map(len, model_files.values())) + len(web.files["m/list.json"]) * 3


def test_a_server_without_ranges_begins_anew(web, listed, download, contents, model_files) -> None:
    uri = listed()
    web.ranges = False
    web.cut = [10**9, 10**9, 10**9, 10**9, 100_000]
    assert contents(download(uri, parallel=1)) == model_files


def test_no_progress_in_six_attempts_is_a_failure_that_may_pass(web, listed, download) -> None:
    uri = listed()
    web.files["m/tokenizer.json"] = b"["  # shorter than listed
    with pytest.raises(DownloadError, match=r"after 1 of 2 bytes \(asked 6 times\)") as caught:
        download(uri, first_pause=0.001)
    assert not caught.value.permanent


def test_content_that_changed_meanwhile_is_not_mixed(
    web, listed, download, contents, model_files, volume
) -> None:
    uri = listed()
    del web.files["m/tokenizer.json"]
    with pytest.raises(PermanentError):
        download(uri, parallel=1)
    changed = model_files | {"config.json": model_files["config.json"].replace(b"32", b"16")}
    uri = listed(files=changed)
    assert contents(download(uri)) == changed
    assert not list((volume / STAGING).iterdir())


def test_a_model_that_lost_a_file_is_made_whole(web, listed, download, contents, model_files):
    directory = download(listed())
    (directory / "model-1.safetensors").unlink()
    (directory / "config.json").write_bytes(b"{}")
    assert Volume(directory.parent).complete(directory.name) is None
    web.requests.clear()
    assert contents(download(listed())) == model_files
    assert gets(web, "model-1.safetensors") == 1
    assert gets(web, "config.json") == 2  # the rest of it does not fit to its beginning
    assert gets(web, "model-2.safetensors") == 0


def test_files_that_are_asked_for_later_are_added(web, listed, download, model_files) -> None:
    uri = listed(files=model_files | {"modeling.py": b"code"})
    assert not (download(uri) / "modeling.py").exists()
    web.requests.clear()
    directory = download(uri, selection=Selection(("*.py",)))
    assert (directory / "modeling.py").read_bytes() == b"code"
    assert gets(web, ".safetensors") == 0
    web.requests.clear()
    assert (download(uri) / "modeling.py").exists()
    assert web.requests == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config.json": None}, "no config.json"),
        ({"model-1.safetensors": None}, "lacks model-1.safetensors"),
        (
            {"model-1.safetensors": None, "model-2.safetensors": None},
            "no safetensors files.*--include",
        ),
        ({"model-1.safetensors": b"\x10" + bytes(7) + b"{}"}, "not a whole safetensors file"),
        ({"model.safetensors.index.json": b"[]"}, "no weight_map"),
    ],
)
def test_what_is_no_whole_model_never_appears(
    web, listed, download, model_files, volume, change, message
) -> None:
    files = {p: b for p, b in (model_files | change).items() if b is not None}
    with pytest.raises(PermanentError, match=message):
        download(listed(files=files))
    assert not [path for path in volume.iterdir() if not path.name.startswith(".")]


def test_pickles_only_when_asked(web, listed, download, contents, model_files) -> None:
    config = {"config.json": model_files["config.json"], "pytorch_model.bin": b"pickle"}
    uri = listed(files=config)
    directory = download(uri, selection=Selection(("*.bin",)))
    assert contents(directory) == config


def test_a_full_volume_says_how_much_is_missing_before_anything_is_fetched(
    web, listed, download, monkeypatch
) -> None:
    usage = SimpleNamespace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(PermanentError, match=r"has 488.8 KiB, but .* lacks 16.4 MiB for it"):
        download(listed())
    assert gets(web, ".safetensors") == 0


def test_a_volume_that_fills_up_meanwhile_is_said(listed, download, monkeypatch) -> None:
    def full(_descriptor: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_write", full)
    with pytest.raises(PermanentError, match=r"the volume is full .* enlarge it"):
        download(listed())


def test_too_large_or_too_many(web, listed, download) -> None:
    from kvasir.models.download.archive import ArchiveLimits

    with pytest.raises(PermanentError, match="more than 1000 bytes"):
        download(listed(), limits=ArchiveLimits(bytes=1000))
    with pytest.raises(PermanentError, match="more than 2 files"):
        download(listed(), limits=ArchiveLimits(files=2))


def test_old_revisions_go_but_not_what_is_used(listed, download, registry, model_files) -> None:
    def push(tag, files):
        notes = "org.opencontainers.image.title"
        registry.push(tag, [(b, "application/octet-stream", {notes: p}) for p, b in files.items()])
        return f"oci://{registry.host}/org/m:{tag}"

    other = download(listed())
    first, second = download(push("v1", model_files)), download(push("v2", model_files))
    held = hold(first)
    third = download(push("v3", model_files), keep=1)
    assert (first.is_dir(), second.is_dir(), third.is_dir()) == (True, False, True)
    os.close(held)
    download(push("v3", model_files), keep=2)
    assert first.is_dir()
    download(push("v3", model_files), keep=1)
    assert (first.is_dir(), third.is_dir(), other.is_dir()) == (False, True, True)


def test_room_is_made_of_what_nobody_uses(web, listed, download, monkeypatch, volume) -> None:
    first, second, third = (download(listed(name)) for name in ("a", "b", "c"))
    abandoned = volume / STAGING / "gone"
    abandoned.mkdir()

    def free(_path):
        kept = sum(path.is_dir() for path in (first, second, third))
        return SimpleNamespace(free=(17 << 20) - 500_000 * kept)

    monkeypatch.setattr(shutil, "disk_usage", free)
    with pytest.raises(PermanentError, match="lacks"):
        download(listed("d"))
    protected = (parse_model_uri(f"{web.url}/a/list.json"),)
    fourth = download(listed("d"), evict=True, in_use=protected)
    assert (first.is_dir(), second.is_dir(), fourth.is_dir()) == (True, False, True)
    assert not abandoned.exists()


def test_a_claim_is_only_checked(download, volume, model_files, contents) -> None:
    with pytest.raises(PermanentError, match="no directory m"):
        download("pvc://claim/a/m")
    directory = volume / "a" / "m"
    directory.mkdir(parents=True)
    for path, body in model_files.items():
        (directory / path).write_bytes(body)
    before = sorted(path.name for path in directory.iterdir())
    assert download("pvc://claim/a/m") == directory
    assert sorted(path.name for path in directory.iterdir()) == before
    assert download.tracker.read().weight_bytes > 500_000


@contextmanager
def start(uri: str, volume, *further: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`kvasir download` as a process, killed if it still runs at the end."""
    command = [sys.executable, "-m", "kvasir", "download", uri, "--to", str(volume), *further]
    pipe = subprocess.PIPE
    env = {**os.environ, **environment}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_hub_model_is_downloaded_once_and_its_commit_noted(
    hub, volume, contents, model_files, further_files
) -> None:
    def run(uri: str, **environment: str) -> tuple[int, str]:
        """By a process of its own: huggingface_hub reads its environment when it is imported."""
        with start(uri, volume, HF_ENDPOINT=hub.url, **environment) as process:
            printed, said = process.communicate(timeout=60)
        return process.returncode, (printed or said).strip()

    repo, gated = hub.repos["org/open"], hub.repos["org/gated"]
    repo.files = gated.files = model_files | further_files
    directory = volume / model_directory(parse_model_uri("hf://org/open@v1"))
    assert run("hf://org/open@v1") == (0, str(directory))
    assert contents(directory) == model_files
    assert json.loads((directory / "kvasir-model.json").read_bytes())["revision"] == repo.commit
    assert sorted(hub.downloads) == sorted(model_files)
    assert run("hf://org/open@v1") == (0, str(directory))
    assert sorted(hub.downloads) == sorted(model_files)
    for uri, message in {
        "hf://org/absent": "does not exist",
        "hf://org/gated": "refused (403): ask for access on the model's page, and give a token",
    }.items():
        status, said = run(uri)
        assert status == 2
        assert message in said
    assert run("hf://org/gated", HF_TOKEN="open-sesame")[0] == 0


def test_killed_at_any_byte_it_goes_on_and_is_never_half_there(
    web, listed, volume, contents, model_files
) -> None:
    uri, total = listed(), sum(map(len, model_files.values()))
    listing, kills = len(web.files["m/list.json"]), 4
    random_bytes = random.Random(7)
    for i in range(kills):
        step = total // kills
        web.stop_at = web.bytes_sent + listing + random_bytes.randrange(step // 2, step)
        web.stopped.clear()
        web.go_on.clear()
        with start(uri, volume) as process:
            assert web.stopped.wait(60)
            process.kill()
        web.go_on.set()
        assert process.returncode == -9
        assert not [path for path in volume.iterdir() if not path.name.startswith(".")], i
    web.stop_at = None
    with start(uri, volume) as process:
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    directory = volume / model_directory(parse_model_uri(uri))
    assert printed.strip() == str(directory)
    assert contents(directory) == model_files
    assert web.bytes_sent < 2 * total
    assert not list((volume / STAGING).iterdir())


def test_two_at_once_do_one_download(web, listed, volume, contents, model_files) -> None:
    uri = listed()
    web.stop_at = 250_000
    with start(uri, volume) as first:
        assert web.stopped.wait(60)
        with start(uri, volume, "--progress-port", "0") as second:
            time.sleep(1)
            web.go_on.set()
            assert second.wait(60) == first.wait(60) == 0
    assert gets(web, "list.json") == 1
    assert gets(web, "model-1.safetensors") == 1
    assert contents(volume / model_directory(parse_model_uri(uri))) == model_files


def test_who_waits_tells_how_far_the_other_is(web, listed, download, volume, free_port) -> None:
    uri = listed()
    web.stop_at = 250_000
    with start(uri, volume) as first:
        assert web.stopped.wait(60)
        second = threading.Thread(target=download, args=(uri,))
        second.start()
        deadline = time.monotonic() + 30
        while not hasattr(download, "tracker") or download.tracker.read().bytes < 1000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        progress = download.tracker.read()
        assert progress.phase is DownloadPhase.DOWNLOADING
        assert progress.total_bytes > 500_000
        web.go_on.set()
        second.join()
        assert first.wait(60) == 0
    assert download.tracker.read().phase is DownloadPhase.DONE


def test_progress_is_served_and_a_failure_has_its_exit_status(
    web, listed, volume, free_port
) -> None:
    web.stop_at = 250_000
    port = ("--progress-port", str(free_port), "--progress-host", "127.0.0.1")
    with start(listed(), volume, *port) as process:
        assert web.stopped.wait(60)
        url = f"http://127.0.0.1:{free_port}"
        progress = parse_progress(httpx.get(f"{url}/progress").content)
        assert progress.phase is DownloadPhase.DOWNLOADING
        assert 0 < progress.bytes <= 250_000 < progress.total_bytes
        assert httpx.get(f"{url}/").status_code == 404
        process.terminate()
        process.wait(60)
    web.go_on.set()
    assert process.returncode == 130
    with start(f"{web.url}/absent.tar", volume) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert (
        said.strip() == f"kvasir: {web.url}/absent.tar does not exist (404); check the model's URI"
    )


def test_a_server_that_cannot_be_reached_is_asked_again(web, listed, download) -> None:
    web.fail = [503, 429]
    assert download(listed()).is_dir()
    with pytest.raises(DownloadError, match="check the network") as caught:
        download("http://127.0.0.1:9/x.tar", first_pause=0.001)
    assert not caught.value.permanent
