"""Where a model's config.json is on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvasir.model_uri import parse_model_uri
from kvasir.models.hf_config import ConfigError
from kvasir.models.local_config import find_config


def test_a_path_is_itself(tmp_path: Path) -> None:
    assert find_config(parse_model_uri(str(tmp_path))) == tmp_path


def test_the_builtin_model_is_found_without_importing_the_engine() -> None:
    imported = {name for name in sys.modules if name.startswith("kvasir_engine.")}
    directory = find_config(parse_model_uri("builtin://kvasir-tiny"))
    assert (directory / "config.json").is_file()
    assert {name for name in sys.modules if name.startswith("kvasir_engine.")} == imported


def test_the_builtin_model_is_missing_where_the_engine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.models.local_config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"is not installed; .* is kvasir-tiny"):
        find_config(parse_model_uri("builtin://kvasir-tiny"))


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config of org/model at two revisions in a Hugging Face cache."""
    repo = tmp_path / "models--org--model"
    for revision, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        (repo / "refs").mkdir(parents=True, exist_ok=True)
        (repo / "refs" / revision).write_text(commit)
        (repo / "snapshots" / commit).mkdir(parents=True)
        (repo / "snapshots" / commit / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return repo / "snapshots"


def test_the_cache_is_asked_for_the_revision(cached: Path) -> None:
    main, v1 = (cached / (letter * 40) / "config.json" for letter in "ab")
    assert find_config(parse_model_uri("hf://org/model")) == main
    assert find_config(parse_model_uri("hf://org/model"), "v1") == v1
    assert find_config(parse_model_uri("hf://org/model@v1"), "main") == v1


@pytest.mark.parametrize("uri", ["hf://org/other", "hf://org/model@v9"])
def test_what_is_not_cached_can_be_passed(cached: Path, uri: str) -> None:
    with pytest.raises(ConfigError, match=r"not on this machine; .* --config"):
        find_config(parse_model_uri(uri))


def test_without_the_hubs_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"without huggingface_hub; .* --config"):
        find_config(parse_model_uri("hf://org/model"))
