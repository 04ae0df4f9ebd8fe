"""The form of answers that have to call a tool, or whose calls are held to strict schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.server.openai.structured import field_that_asks
from kvasir_engine.server.openai.tools.tool_request import has_to_call, is_strict, wants_calls
from kvasir_engine.text.parsing.call_grammar import CallBlock, CallForms, CallGrammar
from kvasir_engine.text.parsing.formats import ToolFormat
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoned_form import form_part


@dataclass(frozen=True, slots=True)
class CallForm:
    """Form of an answer's calls."""

    form: str
    """SamplingParams.structured_outputs."""
    is_asked: bool
    """The body asks for it; else the answer may be free where it cannot be enforced."""


def call_form(
    body: ChatBody, parsing: Parsing | None, beside: str | None = None
) -> CallForm | None:
    """Return the form of an answer whose calls are enforced: what begins as a call is one, with
    arguments of its schema where the body says so, else with any; None where there are no calls,
    and where the model's format of calls cannot be enforced. With a form `beside` them, an answer
    that does not call has it. `body` was checked. Raises a 400 where it asks for a form that cannot
    be enforced, ConstraintError and UnknownFormError where `beside` cannot."""
    of_model = None if parsing is None else parsing.tools
    if not wants_calls(body) or parsing is None or of_model is None:
        return None
    forced = has_to_call(body)
    offered = _offered(body)
    one_call = body.parallel_tool_calls is False or isinstance(body.tool_choice, Mapping)
    if beside is None and not forced and not any(map(is_strict, body.tools or ())):
        free = _free_form(of_model, parsing.markers, tuple(offered), one_call)
        return None if free is None else CallForm(free, is_asked=False)
    calls = CallGrammar(
        {name: each.get("parameters") for name, each in offered.items()},
        parsing.markers,
        one_call=one_call,
        strict={name for name, each in offered.items() if each.get("strict")},
    )
    block = _block(of_model, calls, field_that_asks(body))
    if forced:
        return CallForm(calls.required(block), is_asked=True)
    if beside is not None:
        either = calls.either(block, form_part(beside))
        return None if either is None else CallForm(either, is_asked=True)
    return CallForm(calls.permitted(block), is_asked=True)


@lru_cache(maxsize=64)
def _free_form(
    of_model: ToolFormat, markers: Markers, names: Sequence[str], one_call: bool
) -> str | None:
    """Return the form of answers that may call some functions with any arguments; kept, since a
    client has the same tools in all its requests."""
    calls = CallGrammar(dict.fromkeys(names), markers, one_call=one_call, loose=True)
    block = of_model.block(calls)
    return None if block is None else calls.permitted(block)


def _block(of_model: ToolFormat, calls: CallGrammar, field: str) -> CallBlock | CallForms:
    try:
        block = of_model.block(calls)
    except SchemaError as error:
        raise invalid(
            f"The parameters of a strict function cannot be enforced: {error}; change them, or "
            "leave strict out.",
            field,
            "unsupported",
        ) from error
    if block is None:
        raise invalid(
            f"{field} cannot be enforced, since this model writes calls in the format "
            f"{of_model.name}; use tool_choice auto without strict functions, and check the calls.",
            field,
            "unsupported",
        )
    return block


def _offered(body: ChatBody) -> dict[str, Mapping[str, Any]]:
    """Return the functions that may be called, by name."""
    functions = [tool["function"] for tool in body.tools or ()]
    choice = body.tool_choice
    named = choice["function"]["name"] if isinstance(choice, Mapping) else None
    return {each["name"]: each for each in functions if named is None or each["name"] == named}
