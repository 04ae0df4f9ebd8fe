from __future__ import annotations

import json

import pytest
from tokenizers import pre_tokenizers

from kvasir.text.json_files import TokenizerError
from kvasir.text.tokenizer import Tokenizer
from kvasir.text.tokenizer_conversion import converted_tokenizer_file

pytestmark = pytest.mark.slow


@pytest.fixture
def old_model(tmp_path, monkeypatch):
    """GPT-2's files of before tokenizer.json."""
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "model"
    directory.mkdir()
    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    vocab = {token: at for at, token in enumerate(tokens)}
    (directory / "vocab.json").write_text(json.dumps(vocab))
    (directory / "merges.txt").write_text("#version: 0.2\nh e\n")
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    )
    return directory


def test_old_files_are_converted_once(old_model, monkeypatch):
    tokenizer = Tokenizer.load(old_model)
    ids = tokenizer.encode("he said")
    assert tokenizer.token_bytes(ids[0]) == b"he"
    assert tokenizer.decode(ids) == "he said"
    assert tokenizer.special_id("eos_token") == 0

    monkeypatch.setattr("subprocess.run", None)  # a second conversion would fail
    assert Tokenizer.load(old_model).encode("he said") == ids


def test_a_failed_conversion_says_why_and_leaves_nothing(old_model, tmp_path):
    (old_model / "vocab.json").write_text("not json")
    with pytest.raises(TokenizerError, match="could not be converted"):
        converted_tokenizer_file(old_model, trust_remote_code=False)
    assert list((tmp_path / "cache" / "tokenizers").iterdir()) == []


def test_a_directory_without_any_tokenizer_is_refused(tmp_path):
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        converted_tokenizer_file(tmp_path, trust_remote_code=False)
