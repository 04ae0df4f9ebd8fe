"""Reports of prompts made at once, where nothing else waits."""

from __future__ import annotations

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.prompt_report.report import PromptReport, TokenisedPrompt
from kvasir_engine.server.reports.report_maker import ReportMaker
from kvasir_engine.server.reports.reporter import PromptTaker


class CollectedReports(PromptTaker):
    """Make the reports of prompts and keep them until they are taken."""

    def __init__(self, tokenizer: Tokenizer, block_size: int) -> None:
        self._maker = ReportMaker(tokenizer, block_size)
        self._made: list[PromptReport] = []

    def fresh(self) -> CollectedReports:
        """Return one that has reported nothing."""
        made = CollectedReports.__new__(CollectedReports)
        made._maker = self._maker.fresh()
        made._made = []
        return made

    def put(self, prompt: TokenisedPrompt) -> None:
        """Make the report of `prompt`."""
        report = self._maker.make(prompt)
        if report is not None:
            self._made.append(report)

    def take(self) -> list[PromptReport]:
        """Return the reports since the last call."""
        made, self._made = self._made, []
        return made
