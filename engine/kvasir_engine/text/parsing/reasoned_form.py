"""Forms of answers that begin with reasoning, which stands before what is enforced.

Where single tokens enclose the reasoning, whoever keeps to the grammar waits for the last of them
(grammar/thinking.py). Everywhere else the reasoning is a part of the grammar.
"""

from __future__ import annotations

import json
from typing import Any

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.json_schema import enforceable
from kvasir_engine.grammar.lark import (
    LarkWriter,
    Part,
    any_of,
    json_value,
    literal,
    regex,
    sequence,
)
from kvasir_engine.grammar.schema_regex import portable
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import PromptEnd


def behind_reasoning(
    parsing: Parsing, tokenizer: Tokenizer, prompt: PromptEnd, form: str, *, calls: bool
) -> tuple[str, Thinking | None]:
    """Return SamplingParams.structured_outputs of answers that are `form` behind their reasoning,
    and the tokens around it where the form does not have it. `calls`: the form is one of calls.

    Raises ConstraintError for a form that cannot be enforced, ValueError for one that cannot stand
    behind reasoning of the model's.
    """
    if parsing.reasoning is None or not parsing.may_reason(prompt):
        return form, None
    pair = parsing.enclosing(tokenizer)
    if pair is not None:
        return form, parsing.thinking(tokenizer, prompt, pair)
    write = parsing.reasoning.lead
    if write is None:
        raise ValueError(f"reasoning in the format {parsing.reasoning.name}")
    lark = LarkWriter()
    lead = write(lark, parsing.markers, prompt)
    before = lead.calls if calls else lead.content
    if before is None:
        raise ValueError("continue_final_message")
    if not before:
        return form, None
    try:
        whole = sequence(before, lark.rule(form_part(form)))
    except UnknownFormError as error:
        raise ValueError(
            f"{error} behind reasoning in the format {parsing.reasoning.name}"
        ) from error
    return json.dumps({"lark": lark.text(whole)}, ensure_ascii=False), None


class UnknownFormError(Exception):
    """A form that cannot be a part of a grammar, with the name of its kind."""


def form_part(form: str) -> Part:
    """Return SamplingParams.structured_outputs as a part of a grammar. Raises ConstraintError for
    one that cannot be enforced, UnknownFormError."""
    parse_constraint(form)
    [(kind, value)] = json.loads(form).items()
    match kind:
        case "lark":
            return f"%lark {{\n{value}\n}}"
        case "json_object":
            return json_value({"type": "object"})
        case "json":
            schema: Any = json.loads(value) if isinstance(value, str) else value
            return json_value(enforceable(schema, in_calls=True))
        case "regex":
            return regex(_portable(value))
        case "choice":
            return any_of(map(literal, value))
    raise UnknownFormError(kind)


def _portable(pattern: str) -> str:
    try:
        return portable(pattern)
    except ValueError as error:
        raise ConstraintError(f"regex is none: {error}") from None
