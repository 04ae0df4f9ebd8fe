"""Make one prompt's report. prompt_map.py says what is claimed and why it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.block_hash import HASH_BYTES
from kvasir.wire.prompt_report import prompt_map
from kvasir.wire.prompt_report.token_cuts import CutRules, TokenCuts, token_ends
from kvasir.wire.text_chain import BLOCK_ENDS


@dataclass(frozen=True, slots=True)
class PromptReport:
    """Text blocks of one prompt, each with the KV blocks that its chain determines.

    For text block i: `text_hashes[i]` (64 bits), `kv_blocks[i]` leading KV blocks, and the hash of
    the last of them in `kv_hashes[16 * i : 16 * i + 16]` (zeros for none).
    """

    text_hashes: Sequence[int]
    kv_blocks: Sequence[int]
    kv_hashes: bytes


@dataclass(frozen=True, slots=True)
class TokenisedPrompt:
    """Prompt and its tokens, as a report needs them. `render` None = a completion; `ends`: where
    each token ends in the text, in bytes, if that is known already."""

    pieces: list[bytes]
    messages: prompt_map.Messages
    text: str
    token_ids: Sequence[int]
    block_hashes: bytes
    add_special_tokens: bool
    render: prompt_map.Render | None
    ends: Sequence[int] | None = None


def make_report(
    prompt: TokenisedPrompt,
    hashes: Sequence[int],
    tokenizer: Tokenizer,
    rules: CutRules,
    block_size: int,
    *,
    known: int = 0,
    claimed: int = 0,
) -> PromptReport | None:
    """Return what the prompt's text blocks (`hashes`, its chain) determine, from block `known` on,
    where those before determine `claimed` KV blocks. None when the ids are not the text's."""
    ends = prompt.ends
    if ends is None:
        ends = token_ends(
            tokenizer, prompt.text, prompt.token_ids, add_special_tokens=prompt.add_special_tokens
        )
    if ends is None:
        return None
    text = prompt.text.encode("utf-8", "surrogatepass")
    counts = prompt_map.kv_blocks(
        _anchors(prompt, text, BLOCK_ENDS[known]),
        range(known, len(hashes)),
        TokenCuts(text, prompt.token_ids, ends, rules),
        block_size,
        claimed_before=claimed,
    )
    return _report(hashes[known:], counts, prompt.block_hashes)


def _anchors(prompt: TokenisedPrompt, text: bytes, known: int) -> list[prompt_map.Anchor]:
    if prompt.render is None:
        return prompt_map.completion_anchors(prompt.pieces)
    return prompt_map.chat_anchors(prompt.pieces, prompt.messages, text, prompt.render, known=known)


def _report(hashes: Sequence[int], counts: Sequence[int], block_hashes: bytes) -> PromptReport:
    available = len(block_hashes) // HASH_BYTES
    counts = [min(count, available) for count in counts]
    kv_hashes = b"".join(
        block_hashes[(count - 1) * HASH_BYTES : count * HASH_BYTES] if count else bytes(HASH_BYTES)
        for count in counts
    )
    return PromptReport(hashes, counts, kv_hashes)
