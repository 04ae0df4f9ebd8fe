"""Models by path, builtin:// and hf://, against a server that speaks the hub's protocol."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.model_directory import loaded_revision, resolve_model

pytestmark = pytest.mark.slow

WANTED = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
CHUNK = 10 << 20
"""Bytes that huggingface_hub writes at once."""
RESOLVE = """
import json, sys
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.model_directory import resolve_model, resolve_tokenizer
answers = []
for arguments in json.loads(sys.argv[1]):
    resolve = resolve_tokenizer if "tokenizer" in arguments else resolve_model
    try:
        answers.append(str(resolve(**arguments)))
    except ModelLoadError as error:
        answers.append(f"error: {error}")
assert not {"torch", "transformers"} & sys.modules.keys()
print(json.dumps(answers))
"""


@pytest.fixture
def start(hub, tmp_path):
    """start(arguments, ..., **environment): a process of its own that resolves each.

    huggingface_hub reads its environment when it is imported.
    """

    def popen(*calls: dict[str, object], **environment: str) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        env |= {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            # A loaded machine takes its time, and what times out begins from nothing.
            "HF_HUB_DOWNLOAD_TIMEOUT": "120",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environment,
        }
        command = [sys.executable, "-c", RESOLVE, json.dumps(calls)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)

    return popen


@pytest.fixture
def resolve(start):
    """resolve(arguments, ..., **environment): the answer to each, from a process of its own."""

    def run(*calls: dict[str, object], **environment: str) -> list[str]:
        with start(*calls, **environment) as process:
            said, why = process.communicate(timeout=120)
        assert process.returncode == 0, why
        answers: list[str] = json.loads(said)
        return answers

    return run


def names(directory: str) -> set[str]:
    return {path.name for path in Path(directory).iterdir()}


def test_downloads_what_a_model_needs_once(hub, resolve) -> None:
    by_uri, by_id, by_tag = resolve(
        {"model": "hf://org/open"},
        {"model": "org/open"},
        {"model": "hf://org/open", "revision": "v1", "remote_code": True},
    )
    assert by_uri == by_id == by_tag
    assert names(by_uri) == WANTED | {"modeling_extra.py"}
    assert sorted(hub.downloads) == sorted(WANTED | {"modeling_extra.py"})
    content = hub.repos["org/open"].files["model.safetensors"]
    assert (Path(by_uri) / "model.safetensors").read_bytes() == content


def test_offline_takes_the_cache_or_says_so(hub, resolve) -> None:
    (online,) = resolve({"model": "org/open"})
    hub.downloads.clear()
    cached, absent = resolve({"model": "org/open"}, {"model": "org/gated"}, HF_HUB_OFFLINE="1")
    assert cached == online
    assert "HF_HUB_OFFLINE is set" in absent
    assert hub.downloads == []


def test_a_token_opens_a_gated_model(hub, resolve) -> None:
    (refused,) = resolve({"model": "hf://org/gated"})
    assert "is gated" in refused
    assert "HF_TOKEN" in refused
    (path,) = resolve({"model": "hf://org/gated"}, HF_TOKEN="open-sesame")
    assert "model.safetensors" in names(path)
    assert hub.tokens == {None, "open-sesame"}


def test_each_failure_is_one_sentence(resolve) -> None:
    absent, revision, other, scheme = resolve(
        {"model": "hf://org/absent"},
        {"model": "hf://org/open@v9"},
        {"model": "hf://org/diffuser"},
        {"model": "s3://bucket/model"},
    )
    assert "hf://org/absent does not exist" in absent
    assert "no revision 'v9'" in revision
    assert "no config.json" in other
    assert "not supported without a cluster" in scheme
    (unreachable,) = resolve({"model": "org/open"}, HF_ENDPOINT="http://127.0.0.1:9")
    assert "cannot be reached" in unreachable
    assert "\n" not in unreachable


def test_a_tokenizer_comes_without_weights_and_where_it_should(
    hub, resolve, tmp_path: Path
) -> None:
    folder = tmp_path / "downloads"
    path, refused = resolve(
        {"tokenizer": "org/open", "download_dir": str(folder)}, {"tokenizer": "builtin://x"}
    )
    assert Path(path).is_relative_to(folder)
    assert names(path) == WANTED - {"model.safetensors"}
    assert "--tokenizer builtin://x is no directory" in refused


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(ModelLoadError, match="not a directory"):
        resolve_model(str(tmp_path / "absent"))
    with pytest.raises(ModelLoadError, match="only with hf://"):
        resolve_model(str(tmp_path), "main")


def test_the_builtin_model_comes_with_the_package() -> None:
    assert (resolve_model("builtin://kvasir-tiny") / "model.safetensors").is_file()


def test_an_unknown_builtin_names_the_one_there_is() -> None:
    with pytest.raises(ModelLoadError, match="kvasir-tiny"):
        resolve_model("builtin://absent")


def test_a_broken_download_goes_on_where_it_broke(hub, resolve, breakage) -> None:
    content = random.Random(0).randbytes(CHUNK + 2000)
    hub.repos["org/open"].files["model.safetensors"] = content
    hub.broken["model.safetensors"] = breakage(sent=CHUNK + 1000)
    (path,) = resolve({"model": "org/open"})
    assert (Path(path) / "model.safetensors").read_bytes() == content
    assert hub.downloads.count("model.safetensors") == 2
    assert hub.ranges == [f"bytes={CHUNK}-"]


def test_a_killed_download_leaves_no_half_model(hub, resolve, start, breakage, tmp_path) -> None:
    """Also where every other file is whole."""
    content = hub.repos["org/open"].files["model.safetensors"]
    stalled = hub.broken["model.safetensors"] = breakage(sent=1000, stalls=True)
    with start({"model": "org/open"}) as process:
        assert stalled.reached.wait(60)
        while len(list(tmp_path.glob("cache/hub/*/snapshots/*/*"))) < len(WANTED) - 1:
            time.sleep(0.01)
        process.kill()
        process.communicate()
    (absent,) = resolve({"model": "org/open"}, HF_HUB_OFFLINE="1")
    assert absent.startswith("error: hf://org/open is not, or not completely, in the cache")
    (path,) = resolve({"model": "org/open"})
    assert (Path(path) / "model.safetensors").read_bytes() == content
    assert resolve({"model": "org/open"}, HF_HUB_OFFLINE="1") == [path]


def test_the_commit_that_a_directory_is_of(tmp_path):
    commit = "0123456789abcdef" * 2
    assert loaded_revision(tmp_path / "models--a--b" / "snapshots" / commit, "main") == commit
    assert loaded_revision(tmp_path, None) is None
    assert loaded_revision(tmp_path, "v1") == "v1"


def test_a_cache_volume_knows_the_commit_of_its_models(tmp_path: Path) -> None:
    assert loaded_revision(tmp_path, "main") == "main"
    manifest = {"source": "hf://org/open@main", "revision": "c0ffee", "files": []}
    (tmp_path / "kvasir-model.json").write_text(json.dumps(manifest))
    assert loaded_revision(tmp_path, "main") == "c0ffee"
