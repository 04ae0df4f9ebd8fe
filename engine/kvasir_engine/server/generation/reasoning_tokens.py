"""Number of the tokens that are an answer's reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.reasoning import PromptEnd


def closing_token(parsing: Parsing, tokenizer: Tokenizer, prompt_end: PromptEnd) -> int | None:
    """Return the token that ends the reasoning of answers to a prompt; None where it ends with
    several, as in Harmony, or the prompt has ended it."""
    pair = parsing.enclosing(tokenizer)
    thinking = None if pair is None else parsing.thinking(tokenizer, prompt_end, pair)
    return None if thinking is None else thinking.closer


class ReasoningTokens:
    """Counts the tokens of a choice's reasoning while it grows, the markers around it included."""

    def __init__(self, closer: int | None) -> None:
        """`closer` is that of `closing_token`."""
        self._closer = closer
        self._searched = 0
        self._closed_at: int | None = None

    def count(self, token_ids: Sequence[int], units: Mapping[Kind, int]) -> int:
        """Return how many of all of the choice's tokens so far are reasoning.

        `units` are the characters so far by kind. Where no single token ends the reasoning, its
        share of them is taken for its share of the tokens.
        """
        reasoning = units.get(Kind.REASONING, 0)
        if not reasoning:
            return 0
        if self._closer is None:
            return min(len(token_ids), round(len(token_ids) * reasoning / sum(units.values())))
        self._search(self._closer, token_ids)
        return len(token_ids) if self._closed_at is None else self._closed_at + 1

    def _search(self, closer: int, token_ids: Sequence[int]) -> None:
        """Look for the end in what has not been searched: a stream asks after every token."""
        if self._closed_at is not None:
            return
        for at in range(self._searched, len(token_ids)):
            if token_ids[at] == closer:
                self._closed_at = at
                break
        self._searched = len(token_ids)
