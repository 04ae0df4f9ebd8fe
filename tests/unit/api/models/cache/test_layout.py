from __future__ import annotations

import pytest

from kvasir.model_uri import ModelURIError, parse_model_uri
from kvasir.models.cache.layout import model_directory


def directory(text: str, revision: str | None = None) -> str:
    return model_directory(parse_model_uri(text), revision)


def test_each_model_and_revision_has_one_directory() -> None:
    names = [
        directory("hf://org/model"),
        directory("hf://org/model@main"),
        directory("hf://org/model@v1.0"),
        directory("s3://org/model"),
        directory("s3://org-model"),
        directory("oci://org.example/model"),
    ]
    assert len(set(names)) == len(names)
    assert directory("hf://org/model", "main") == directory("hf://org/model@main")


def test_a_directory_is_one_short_readable_name() -> None:
    name = directory("https://host/a/" + "long/" * 100 + "model.tar.gz?x=../../y")
    assert name.startswith("https-host-a-long")
    assert "/" not in name
    assert len(name) < 80


@pytest.mark.parametrize(
    ("uri", "path"), [("pvc://claim", "."), ("pvc://claim/a/b", "a/b"), ("pvc://claim/a/", "a")]
)
def test_a_claim_is_used_as_it_is(uri: str, path: str) -> None:
    assert directory(uri) == path


@pytest.mark.parametrize("uri", ["builtin://kvasir-tiny", "file:///models/x"])
def test_what_needs_no_download_has_no_place(uri: str) -> None:
    with pytest.raises(ModelURIError, match="is not cached"):
        directory(uri)
