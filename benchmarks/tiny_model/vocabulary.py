"""The tiny model's tokenizer: byte-level, whole frequent words, single digits, ChatML.

The BPE model has no merges and `ignore_merges`: a word of the vocabulary is one token, any other is
its bytes. So random strings are seen letter by letter, which reversing and copying need, and every
UTF-8 text round-trips.
"""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from benchmarks.tiny_model.draw import KNOWN, WORDS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

SIZE = 1792
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THINK, END_OF_THINKING = "<think>", "</think>"
CONTEXT = 2048

_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

# Hermes-style tool calls; a message's content is a string or a list of text parts. Thinking is
# opened where it is asked for, and that of earlier turns is left out.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string %}{{ content }}
{%- elif content %}{% for part in content %}{{ part['text'] }}{% endfor %}
{%- endif -%}
{%- endmacro -%}
{%- set system = messages[0]['role'] == 'system' -%}
{%- if system or tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if system %}{{ text(messages[0]['content']) }}{% endif -%}
{%- if tools -%}
{%- if system %}{{ '\\n' }}{% endif -%}
{{- 'Tools:' -}}
{%- for tool in tools %}{{ '\\n' + ((tool['function'] or tool) | tojson) }}{% endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in (messages[1:] if system else messages) -%}
{{- '<|im_start|>' + message['role'] + '\\n' + text(message['content']) -}}
{%- for call in message['tool_calls'] or [] -%}
{%- set call = call['function'] or call -%}
{%- if not loop.first or message['content'] %}{{ '\\n' }}{% endif -%}
{{- '<tool_call>\\n{"name": ' + (call['name'] | tojson) + ', "arguments": ' -}}
{{- call['arguments'] if call['arguments'] is string else (call['arguments'] | tojson) -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' }}{% if enable_thinking %}{{ '<think>\\n' }}{% endif -%}
{%- endif -%}
"""


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


def _always() -> list[str]:
    """Tokens that every tokenizer of this kind has: bytes, letters after a space, task words."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"Ġ{c}" for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]
    for group in ("things", "colours"):
        tokens += [form for word in WORDS[group] for form in (word, f"Ġ{word}")]
    return list(dict.fromkeys(tokens))


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer whose `SIZE` tokens hold the most frequent words of `texts`."""
    splitter = _pre_tokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    tokens = [END_OF_TEXT, START, END, *_always()]
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
    seen = set(tokens)
    words = {form for word in KNOWN for form in (word, word[0].swapcase() + word[1:])}
    admitted = (
        piece
        for piece in frequent
        if piece not in seen and (piece.lstrip("Ġ") in words or not piece.lstrip("Ġ").isalpha())
    )
    tokens += islice(admitted, SIZE - len(tokens))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in (END_OF_TEXT, START, END)]
    tokenizer.add_special_tokens(special)
    return tokenizer


def with_thinking(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer with tokens that begin and end thinking, in place of the two words with
    the highest ids, the rarest; what has them already comes back as it is."""
    content = json.loads(tokenizer.to_str())
    ids: dict[str, int] = content["model"]["vocab"]
    if THINK in ids:
        return tokenizer
    words = sorted(ids, key=ids.__getitem__)[: SIZE - 2]
    content["model"]["vocab"] = {
        each: at for at, each in enumerate([*words, THINK, END_OF_THINKING])
    }
    thinking = Tokenizer.from_str(json.dumps(content))
    # Not special: a text that is decoded without special tokens shows where the thinking ends.
    thinking.add_tokens([AddedToken(t, normalized=False) for t in (THINK, END_OF_THINKING)])
    return thinking


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": CONTEXT,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
