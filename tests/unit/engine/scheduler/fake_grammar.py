"""A grammar that any text can name: which tokens may follow depends on all of the output."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.step_plan import Int32Array

VOCAB = 24
DEAD_END = "ends "
"""Begins the text of a grammar that lets nothing follow after so many tokens."""
RUNS = "runs"
"""Begins the text of a grammar in which seven of nine tokens are the only ones that may follow."""


def may_follow(grammar: str, output: Sequence[int]) -> list[int]:
    """Tokens that may follow `output`, about half of all."""
    if grammar.startswith(DEAD_END) and len(output) >= int(grammar.removeprefix(DEAD_END)):
        return []
    if grammar.startswith(RUNS) and len(output) % 9 > 1:
        return [hash((grammar, tuple(output))) % VOCAB]
    found = [t for t in range(VOCAB) if hash((grammar, tuple(output), t)) & 8]
    return found or [len(output) % VOCAB]


def may_follow_all(
    grammar: str | None, thinking: Thinking | None, output: Sequence[int]
) -> Sequence[int]:
    """Tokens that may follow `output`, of a grammar behind reasoning."""
    after = list(output)
    if thinking is not None and (thinking.opened or output[:1] == [thinking.opener]):
        inside = after if thinking.opened else after[1:]
        if thinking.closer not in inside:
            ends = thinking.budget is not None and len(inside) >= thinking.budget
            return [thinking.closer] if ends else range(VOCAB)
        after = inside[inside.index(thinking.closer) + 1 :]
    if grammar is None:
        return range(VOCAB)
    may_open = thinking is not None and not thinking.opened and not output
    return [*may_follow(grammar, after), *([thinking.opener] if thinking and may_open else [])]


class FakeMatcher:
    """GrammarMatcher."""

    def __init__(self, grammar: str) -> None:
        self.grammar = grammar
        self.output: list[int] = []

    @property
    def num_accepted(self) -> int:
        """GrammarMatcher.num_accepted."""
        return len(self.output)

    def accept(self, token: int) -> bool:
        """GrammarMatcher.accept."""
        if token not in may_follow(self.grammar, self.output):
            return False
        self.output.append(token)
        return True

    def restart(self) -> None:
        """GrammarMatcher.restart."""
        self.output.clear()

    def fill(self, mask: Int32Array) -> None:
        """GrammarMatcher.fill."""
        mask[:] = 0
        mask[0] = sum(1 << token for token in may_follow(self.grammar, self.output))


class FakeGrammar:
    """Grammar."""

    def __init__(self, text: str) -> None:
        self.text = text

    def matcher(self, stop_ids: Sequence[int]) -> FakeMatcher:
        """Grammar.matcher."""
        return FakeMatcher(self.text)
