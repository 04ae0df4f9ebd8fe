from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.model_uri import CLUSTER_SCHEMES, ModelURI, ModelURIError, parse_model_uri


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("hf://Qwen/Qwen3-8B", ModelURI("hf", "Qwen/Qwen3-8B")),
        ("hf://Qwen/Qwen3-8B@main", ModelURI("hf", "Qwen/Qwen3-8B", "main")),
        ("HF://gpt2@refs/pr/1", ModelURI("hf", "gpt2", "refs/pr/1")),
        ("meta-llama/Llama-3.1-8B", ModelURI("hf", "meta-llama/Llama-3.1-8B")),
        ("gpt2", ModelURI("hf", "gpt2")),
        ("builtin://kvasir-tiny", ModelURI("builtin", "kvasir-tiny")),
        ("file:///models/a%20b", ModelURI("file", "/models/a b")),
        ("/models/absent", ModelURI("file", "/models/absent")),
        ("s3://bucket/key", ModelURI("s3", "bucket/key")),
        ("pvc://claim/path", ModelURI("pvc", "claim/path")),
        ("https://host/model", ModelURI("https", "host/model")),
        ("oci://ghcr.io/org/model:v1", ModelURI("oci", "ghcr.io/org/model:v1")),
    ],
)
def test_forms(text: str, uri: ModelURI) -> None:
    assert parse_model_uri(text) == uri


def test_an_existing_directory_wins_over_a_hugging_face_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_model_uri("org/name").scheme == "hf"
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_model_uri("org/name") == ModelURI("file", str(tmp_path / "org/name"))
    assert parse_model_uri("./absent") == ModelURI("file", str(tmp_path / "absent"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_model_uri("~/m") == ModelURI("file", str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be 1 to 1024 printable characters"),
        ("a\nb", "must be 1 to 1024 printable characters"),
        ("x" * 1025, "must be 1 to 1024 printable characters"),
        ("ftp://host/x", r"scheme 'ftp' is not one of hf://, builtin://, file://, s3://"),
        ("hf://", "no existing path and no Hugging Face id"),
        ("hf://a/b/c", r"write hf://ORG/NAME"),
        ("hf://a/..b", "no Hugging Face id"),
        ("hf://a/b--c", "no Hugging Face id"),
        ("hf://-a/b", "no Hugging Face id"),
        ("hf://a/b@", "revision '' is not a branch"),
        ("hf://a/b@../c", "revision '../c' is not a branch"),
        ("builtin://Tiny", "write builtin://NAME"),
        ("file://models/x", "with three slashes"),
        ("s3:///", "names nothing after s3://"),
        ("s3://bucket/a/../b", r"write s3://BUCKET\[/PREFIX\]"),
        ("pvc://claim/..", r"write pvc://CLAIM\[/PATH\]"),
        ("oci://model", r"write oci://REGISTRY/REPOSITORY"),
        ("https://user:secret@host/x", "without a user or password"),
        ("gs://bucket/x", "scheme 'gs' is not one of"),
        ("~no-such-user-here/x", "home directory"),
    ],
)
def test_errors_name_the_uri_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ModelURIError, match=message):
        parse_model_uri(text)


def test_schemes_of_a_cluster_are_recognised_and_refused_without_one() -> None:
    for scheme in CLUSTER_SCHEMES:
        uri = parse_model_uri(f"{scheme}://there/it-is")
        with pytest.raises(ModelURIError, match=f"{scheme}:// is not supported without a cluster"):
            uri.require_local()
    parse_model_uri("hf://a/b").require_local()


SCHEMES = st.sampled_from(["", "hf://", "file:///", "builtin://", "s3://", "oci://", "x://"])


@pytest.mark.slow
@given(st.builds(str.__add__, SCHEMES, st.text(max_size=40)))
def test_any_text_parses_to_its_canonical_form_or_is_refused(text: str) -> None:
    try:
        uri = parse_model_uri(text)
    except ModelURIError:
        return
    assert parse_model_uri(str(uri)) == uri


NAMES = st.from_regex(r"[A-Za-z0-9_]{1,20}([.-][A-Za-z0-9_]{1,20})?", fullmatch=True)


@given(org=NAMES, name=NAMES, revision=st.none() | NAMES)
def test_hugging_face_ids_round_trip(org: str, name: str, revision: str | None) -> None:
    uri = ModelURI("hf", f"{org}/{name}", revision)
    assert parse_model_uri(str(uri)) == uri
