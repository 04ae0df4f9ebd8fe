from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from kvasir.text.json_files import TokenizerError
from kvasir.text.tokenizer import Tokenizer, eos_token_ids


def test_the_post_processor_decides_on_bos(model_dir):
    tokenizer = Tokenizer.load(model_dir)
    bos = tokenizer.special_id("bos_token")
    assert tokenizer.encode("hi")[0] == bos
    assert bos not in tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.decode(tokenizer.encode("hi ü")) == "hi ü"
    assert tokenizer.decode(tokenizer.encode("hi"), skip_special_tokens=False) == "<s>hi"


def test_special_tokens_come_from_the_config(model_dir):
    tokenizer = Tokenizer.load(model_dir)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.special_id("pad_token") is None
    assert tokenizer.special_ids == {256, 257}
    assert tokenizer.vocab_size == 259


def test_token_bytes_are_the_true_bytes(model_dir):
    tokenizer = Tokenizer.load(model_dir)
    ids = tokenizer.encode("é<tool> ", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b"\xc3", b"\xa9", b"<tool>", b" "]
    assert tokenizer.token_text(ids[0]) == "\ufffd"
    assert tokenizer.token_bytes(10_000) == b""


def test_sentencepiece_tokens_have_their_space_and_bytes():
    vocab = {"▁hello": 0, "<0xE4>": 1, "<unk>": 2}
    backend = Backend(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    tokenizer = Tokenizer(backend, {})
    assert [tokenizer.token_bytes(i) for i in (0, 1)] == [b" hello", b"\xe4"]


def test_a_byte_level_decoder_inside_a_sequence_is_seen():
    backend = Backend(models.BPE(vocab={"Ġhi": 0, "Ã": 1}, merges=[]))
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    tokenizer = Tokenizer(backend, {})
    assert [tokenizer.token_bytes(i) for i in (0, 1)] == [b" hi", b"\xc3"]
    assert not tokenizer.byte_level


def test_a_lone_surrogate_is_a_value_error(model_dir):
    with pytest.raises(ValueError, match="surrogate"):
        Tokenizer.load(model_dir).encode("\ud800")


def test_padding_and_truncation_of_the_file_do_not_apply(model_dir):
    backend = Backend.from_file(str(model_dir / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(model_dir / "tokenizer.json"))
    assert len(Tokenizer.load(model_dir).encode("hello")) == 6


def test_broken_files_are_named(model_dir):
    (model_dir / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a readable"):
        Tokenizer.load(model_dir)
    (model_dir / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match="must hold a JSON object"):
        eos_token_ids_of_config(model_dir)


def eos_token_ids_of_config(directory):
    (directory / "config.json").write_text("[]")
    return eos_token_ids(directory)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, [1, 2]),
        ({}, {"eos_token_id": 3}, [3]),
        ({"eos_token_id": None}, {"text_config": {"eos_token_id": 0}}, [0]),
        ({}, {}, []),
    ],
)
def test_eos_ids_by_precedence(tmp_path, generation, config, expected):
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert eos_token_ids(tmp_path) == expected


def test_eos_ids_that_the_user_puts_into_the_config_come_first(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert eos_token_ids(tmp_path, {"eos_token_id": 4}) == [4]
    assert eos_token_ids(tmp_path, {"vocab_size": 4}) == [1, 2]
