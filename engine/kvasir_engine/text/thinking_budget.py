"""Budgets of reasoning: where a request's reasoning stands, and what cannot be limited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.sampling_params import ParameterError, SamplingParams
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import PROMPT_END_CHARS, PromptEnd

PARAM = "thinking_token_budget"


def limited_thinking(
    params: SamplingParams,
    parsing: Parsing | None,
    tokenizer: Tokenizer,
    prompt: PromptEnd | Sequence[int],
    *,
    vocab_size: int,
) -> Thinking | None:
    """Return the reasoning that `params` limit behind a prompt, of which a chat gives the end and
    whatever else the ids; None if they limit none, or the prompt has ended it. Raises
    ParameterError."""
    budget = params.thinking_token_budget
    if budget is None:
        return None
    if parsing is None or parsing.reasoning is None:
        raise _refused("needs a model whose answers begin with reasoning (--reasoning-parser)")
    end = prompt if isinstance(prompt, PromptEnd) else _end_of(tokenizer, prompt)
    pair = parsing.enclosing(tokenizer)
    if pair is None:
        form = parsing.reasoning.name
        raise _refused(f"does not work together with reasoning in the format {form}")
    thinking = parsing.thinking(tokenizer, end, pair)
    if thinking is None:
        return None
    if not isinstance(prompt, PromptEnd):
        # No template has written it: it may end anywhere within the reasoning.
        thinking.opened = _last(prompt, thinking.opener) > _last(prompt, thinking.closer)
    if max(thinking.opener, thinking.closer) >= vocab_size:
        raise _refused("needs tokens around the reasoning that the model has")
    _check_closer(params, thinking.closer)
    return replace(thinking, budget=budget)


def _end_of(tokenizer: Tokenizer, ids: Sequence[int]) -> PromptEnd:
    text = tokenizer.decode(list(ids[-PROMPT_END_CHARS:]), skip_special_tokens=False)
    return PromptEnd(text[-PROMPT_END_CHARS:])


def _last(ids: Sequence[int], token: int) -> int:
    """Return the last index of a token, -1 without one."""
    return len(ids) - 1 - ids[::-1].index(token) if token in ids else -1


def _check_closer(params: SamplingParams, closer: int) -> None:
    """Refuse what would ban the token that ends the reasoning."""
    if params.allowed_token_ids is not None and closer not in params.allowed_token_ids:
        raise _refused(f"needs token {closer}, which ends the reasoning, in allowed_token_ids")
    if any(word[-1] == closer for word in params.bad_words_token_ids):
        raise _refused("does not work together with bad_words that end as the reasoning does")
    if params.min_tokens and closer in params.stop_token_ids:
        raise _refused(f"does not work together with min_tokens and stop token {closer}")


def _refused(what: str) -> ParameterError:
    return ParameterError(PARAM, f"{PARAM} {what}; leave it out.")
