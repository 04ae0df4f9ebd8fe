"""Make reports of prompts, each of what was not reported lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.prompt_report.report import PromptReport, TokenisedPrompt, make_report
from kvasir.wire.prompt_report.token_cuts import CutRules
from kvasir.wire.text_chain import chain_hashes

MAX_REMEMBERED_BLOCKS = 262_144


class ReportMaker:
    """Run on one worker thread. Leaves out text blocks it reported lately."""

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
        report = make_report(
            prompt,
            hashes,
            self._tokenizer,
            self._rules,
            self._block_size,
            known=known,
            claimed=self._reported[hashes[known - 1]] if known else 0,
        )
        if report is not None:
            self._remember(hashes, known, report.kv_blocks)
        return report

    def _remember(self, hashes: Sequence[int], known: int, counts: Sequence[int]) -> None:
        for text_hash in hashes[:known]:
            self._reported.move_to_end(text_hash)
        self._reported.update(zip(hashes[known:], counts, strict=True))
        while len(self._reported) > MAX_REMEMBERED_BLOCKS:
            self._reported.popitem(last=False)
