"""Models by path, builtin:// and hf://, against a server that speaks the hub's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir_engine.loader.errors import ModelLoadError
from kvasir_engine.loader.hub import resolve_model

RESOLVE = """
import json, sys
from kvasir_engine.loader.errors import ModelLoadError
from kvasir_engine.loader.hub import resolve_model
answers = []
for arguments in json.loads(sys.argv[1]):
    try:
        answers.append(str(resolve_model(**arguments)))
    except ModelLoadError as error:
        answers.append(f"error: {error}")
assert not {"torch", "transformers"} & sys.modules.keys()
print(json.dumps(answers))
"""


@pytest.fixture
def resolve(hub, tmp_path):
    """resolve(arguments, ..., **environment): the answer to each, from a process of its own.

    huggingface_hub reads its environment when it is imported.
    """

    def run(*calls: dict[str, object], **environment: str) -> list[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        env |= {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environment,
        }
        command = [sys.executable, "-c", RESOLVE, json.dumps(calls)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answers: list[str] = json.loads(done.stdout)
        return answers

    return run


def names(directory: str) -> set[str]:
    return {path.name for path in Path(directory).iterdir()}


def test_downloads_what_a_model_needs_once(hub, resolve) -> None:
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    by_uri, by_id, by_tag = resolve(
        {"model": "hf://org/open"},
        {"model": "org/open"},
        {"model": "hf://org/open", "revision": "v1", "remote_code": True},
    )
    assert by_uri == by_id == by_tag
    assert names(by_uri) == wanted | {"modeling_extra.py"}
    assert sorted(hub.downloads) == sorted(wanted | {"modeling_extra.py"})
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
