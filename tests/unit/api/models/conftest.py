"""A small model's files, and servers that offer them: a web server and a container registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hf_hub import breakage, hub
from support.llama_config import LLAMA_8B
from support.models.model_servers import (
    Files,
    Handler,
    Registry,
    RegistryHandler,
    Web,
    contents,
    run_server,
    safetensors,
    tar_of,
)

from kvasir.model_uri import parse_model_uri
from kvasir.models.download.model_download import Download, DownloadOptions
from kvasir.models.download.tracker import Tracker

__all__ = ["breakage", "hub"]


@pytest.fixture(scope="session")
def model_files() -> Files:
    """What an engine needs of a small model, in two shards."""
    shards = ["model-1.safetensors", "model-2.safetensors"]
    index = {"weight_map": {f"w{i}": shard for i, shard in enumerate(shards)}}
    return {
        "config.json": json.dumps(LLAMA_8B).encode(),
        "tokenizer.json": b"[]",
        "model.safetensors.index.json": json.dumps(index).encode(),
        shards[0]: safetensors(300_000),
        shards[1]: safetensors(200_000),
    }


@pytest.fixture(scope="session")
def further_files() -> Files:
    """What lies beside a model and is not downloaded."""
    return {
        "pytorch_model.bin": b"pickle",
        "modeling.py": b"raise SystemExit",
        "onnx/model.json": b"{}",
    }


@pytest.fixture(scope="session")
def make_tar() -> Callable[..., bytes]:
    """make_tar(files, folder="", compression="gz"): an archive of them."""
    return tar_of


@pytest.fixture
def web() -> Iterator[Web]:
    state = Web()
    for port in run_server(Handler, state):
        state.url = f"http://127.0.0.1:{port}"
        yield state


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    state = Registry()
    for port in run_server(RegistryHandler, state):
        state.host = f"127.0.0.1:{port}"
        yield state


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path / "volume"


@pytest.fixture
def download(volume: Path) -> Callable[..., Path]:
    """download(uri, revision=None, **options): the model's directory; .tracker has its reports."""

    def run(uri: str, revision: str | None = None, **options: Any) -> Path:
        made = DownloadOptions(**{"first_pause": 0.01, **options})
        run.tracker = Tracker()  # type: ignore[attr-defined]
        parsed = parse_model_uri(uri)
        return Download(parsed, revision, volume, run.tracker, made).run()  # type: ignore[attr-defined]

    return run


@pytest.fixture(name="contents")
def contents_fixture() -> Callable[[Path], Files]:
    return contents
