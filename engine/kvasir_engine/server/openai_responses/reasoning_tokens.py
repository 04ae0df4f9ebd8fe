"""Number of the tokens that are an answer's reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.reasoning import PromptEnd


def reasoning_tokens(
    token_ids: Sequence[int],
    units: Mapping[Kind, int],
    parsing: Parsing | None,
    tokenizer: Tokenizer,
    prompt_end: PromptEnd,
) -> int:
    """Return the tokens of the reasoning, the markers around it included.

    Where it ends with no single token, as in Harmony, the share of its characters in `units`, those
    of the whole answer by kind, is taken for that of its tokens.
    """
    if parsing is None or not units[Kind.REASONING]:
        return 0
    pair = parsing.enclosing(tokenizer)
    thinking = None if pair is None else parsing.thinking(tokenizer, prompt_end, pair)
    if thinking is None:
        share = units[Kind.REASONING] / sum(units.values())
        return min(len(token_ids), round(len(token_ids) * share))
    ids = list(token_ids)
    return ids.index(thinking.closer) + 1 if thinking.closer in ids else len(ids)
