from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

ROLES = ("system", "user", "assistant", "model")


def save_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer with a BOS from its post-processor, as Llama 3's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.add_tokens([AddedToken("<tool>", special=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    backend.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "pad_token": None,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path)
    return tmp_path
