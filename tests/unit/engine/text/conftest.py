from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from kvasir.text.tokenizer import Tokenizer

TEXTS = ["hello world this is a test, naïve café 你好世界 😀😃 <stop> END of it\n"] * 20


def byte_level() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


def metaspace() -> Tokenizer:
    """Llama 2's kind: a space is part of the word, unknown characters are byte tokens."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "▁hello", "▁wor", "ld", "h", "e", "l", "o", "▁the", ",", "x"]
    tokens = ["<unk>", "<s>", "</s>", *fallback, *pieces]
    backend = Backend(
        models.BPE(
            vocab={token: at for at, token in enumerate(tokens)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="session")
def space_tokenizer() -> Tokenizer:
    return metaspace()
