"""The form that a chat's answers are held to: what the body asks for, or that calls are calls."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.server.openai.structured import field_that_asks
from kvasir_engine.server.openai.tools.call_form import CallForm, call_form
from kvasir_engine.server.openai.tools.tool_request import wants_calls
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoned_form import UnknownFormError, behind_reasoning
from kvasir_engine.text.parsing.reasoning import PromptEnd


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Form of a chat's answers, in `params`, and what the core has to know beside it."""

    params: SamplingParams
    thinking: Thinking | None = None
    may_be_free: bool = False


def answer_form(
    body: ChatBody,
    params: SamplingParams,
    parsing: Parsing | None,
    tokenizer: Tokenizer,
    end: PromptEnd,
) -> AnswerForm:
    """Return the form of the answers to a prompt with this end, which begins behind their
    reasoning. Raises a 400 where what the body asks for cannot be enforced."""
    calls = _calls(body, params, parsing)
    if parsing is None:
        return AnswerForm(params)
    if calls is not None and not calls.is_asked:
        return _if_it_can_be(calls, body, params, parsing, tokenizer, end)
    form = params.structured_outputs if calls is None else calls.form
    if form is None:
        return AnswerForm(params)
    field = field_that_asks(body)
    try:
        form, thinking = behind_reasoning(parsing, tokenizer, end, form, calls=calls is not None)
    except ConstraintError as error:
        raise invalid(f"{field} cannot be enforced: {error}.", field) from error
    except ValueError as error:
        raise invalid(f"{field} does not work together with {error}.", field) from error
    return AnswerForm(params.clone(structured_outputs=form), thinking)


def _calls(body: ChatBody, params: SamplingParams, parsing: Parsing | None) -> CallForm | None:
    """Return the form of answers that may call; one that is asked for beside it is in it."""
    beside = params.structured_outputs if wants_calls(body) else None
    field = field_that_asks(body)
    try:
        calls = call_form(body, parsing, beside)
    except ConstraintError as error:
        raise invalid(f"{field} cannot be enforced: {error}.", field) from error
    except UnknownFormError:
        calls = None
    if calls is None and beside is not None:
        raise invalid(
            f"{field} does not work together with tools; leave one of them out, or set "
            "tool_choice none.",
            field,
        )
    return calls


def _if_it_can_be(
    calls: CallForm,
    body: ChatBody,
    params: SamplingParams,
    parsing: Parsing,
    tokenizer: Tokenizer,
    end: PromptEnd,
) -> AnswerForm:
    """Return a form of calls that nobody asked for, or none where it cannot be enforced."""
    # Tools of a model's own, which the template shows, are called in ways of their own.
    own_tools = "builtin_tools" in (body.chat_template_kwargs or {})
    if own_tools or not params.takes_grammar:
        return AnswerForm(params)
    try:
        form, thinking = behind_reasoning(parsing, tokenizer, end, calls.form, calls=True)
        parse_constraint(form)
    except ValueError:
        return AnswerForm(params)
    return AnswerForm(params.clone(structured_outputs=form), thinking, may_be_free=True)
