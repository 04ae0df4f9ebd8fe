"""Makes one prompt's report. prompt_map.py says what is claimed and why it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvasir.block_hash import HASH_BYTES
from kvasir.template.tokenizer import Tokenizer
from kvasir.text_chain import BLOCK_BYTES, chain_hashes
from kvasir_engine.server.reports import prompt_map
from kvasir_engine.server.reports.prompt_map import Render
from kvasir_engine.server.reports.token_cuts import CutRules, TokenCuts, token_ends

MAX_REMEMBERED_BLOCKS = 262_144


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
    """One tokenised prompt, as the report's maker needs it. `render` None = a completion."""

    pieces: list[bytes]
    messages: prompt_map.Messages
    text: str
    token_ids: Sequence[int]
    block_hashes: bytes
    add_special_tokens: bool
    render: Render | None


class ReportMaker:
    """Runs on one worker thread. Leaves out text blocks it reported lately."""

    def __init__(self, tokenizer: Tokenizer, block_size: int) -> None:
        self._tokenizer = tokenizer
        self._block_size = block_size
        self._reported: OrderedDict[int, int] = OrderedDict()
        """Text hash -> KV blocks claimed for it, the least recently met first."""

    def fresh(self) -> ReportMaker:
        """The same with nothing reported."""
        made = ReportMaker(self._tokenizer, self._block_size)
        if "_rules" in self.__dict__:
            made._rules = self._rules
        return made

    @cached_property
    def _rules(self) -> CutRules:
        return CutRules(self._tokenizer)

    def make(self, prompt: TokenisedPrompt) -> PromptReport | None:
        """The report, None when there is nothing new to say."""
        hashes = chain_hashes(prompt.pieces)
        known = next((i for i, h in enumerate(hashes) if h not in self._reported), len(hashes))
        if known == len(hashes):
            return None
        ends = token_ends(
            self._tokenizer,
            prompt.text,
            prompt.token_ids,
            add_special_tokens=prompt.add_special_tokens,
        )
        if ends is None:
            return None
        text = prompt.text.encode("utf-8", "surrogatepass")
        cuts = TokenCuts(text, prompt.token_ids, ends, self._rules)
        anchors = self._anchors(prompt, text, known * BLOCK_BYTES)
        counts = prompt_map.kv_blocks(
            anchors,
            range(known, len(hashes)),
            cuts,
            self._block_size,
            claimed_before=self._reported[hashes[known - 1]] if known else 0,
        )
        self._remember(hashes, known, counts)
        return _report(hashes[known:], counts, prompt.block_hashes)

    def _anchors(self, prompt: TokenisedPrompt, text: bytes, known: int) -> list[prompt_map.Anchor]:
        if prompt.render is None:
            return prompt_map.completion_anchors(prompt.pieces)
        return prompt_map.chat_anchors(
            prompt.pieces, prompt.messages, text, prompt.render, known=known
        )

    def _remember(self, hashes: Sequence[int], known: int, counts: Sequence[int]) -> None:
        for text_hash in hashes[:known]:
            self._reported.move_to_end(text_hash)
        self._reported.update(zip(hashes[known:], counts, strict=True))
        while len(self._reported) > MAX_REMEMBERED_BLOCKS:
            self._reported.popitem(last=False)


def _report(hashes: Sequence[int], counts: Sequence[int], block_hashes: bytes) -> PromptReport:
    available = len(block_hashes) // HASH_BYTES
    counts = [min(count, available) for count in counts]
    kv_hashes = b"".join(
        block_hashes[(count - 1) * HASH_BYTES : count * HASH_BYTES] if count else bytes(HASH_BYTES)
        for count in counts
    )
    return PromptReport(hashes, counts, kv_hashes)
