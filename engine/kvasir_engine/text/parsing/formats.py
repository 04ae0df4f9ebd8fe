"""The formats of tool calls and of reasoning, by name, and which of them a model has.

Other packages add theirs as entry points of the groups TOOL_GROUP and REASONING_GROUP: each leads
to a ToolFormat or a ReasoningFormat. A name of this module comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from kvasir_engine.grammar.lark import LarkWriter
from kvasir_engine.text.parsing.call_grammar import CallBlock, CallForms, CallGrammar
from kvasir_engine.text.parsing.harmony.harmony_grammar import harmony_forms, harmony_lead
from kvasir_engine.text.parsing.harmony.harmony_parser import HARMONY_MARKERS, HARMONY_STOPS
from kvasir_engine.text.parsing.json_tools import (
    GraniteTools,
    HermesTools,
    JsonTools,
    LlamaJsonTools,
    Phi4MiniTools,
)
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.mistral_tools import MistralTools
from kvasir_engine.text.parsing.pieces import TextMachine
from kvasir_engine.text.parsing.pythonic.python_tools import Gemma3Tools, PythonicTools
from kvasir_engine.text.parsing.reasoning import (
    GraniteReasoning,
    Lead,
    MistralReasoning,
    PromptEnd,
    ReasoningMachine,
    ThinkReasoning,
)
from kvasir_engine.text.parsing.tool_machine import ToolMachine, ToolSet
from kvasir_engine.text.parsing.xml.xml_tools import XmlTools

TOOL_GROUP = "kvasir.tool_call_parsers"
REASONING_GROUP = "kvasir.reasoning_parsers"
HARMONY_TOOLS, HARMONY_REASONING = "openai", "openai_gptoss"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format of tool calls."""

    name: str
    models: str
    """Models that have it, for people."""
    make: Callable[[ToolSet, Markers], TextMachine]
    """A machine for one answer; the text that it gets is what is left of reasoning."""
    markers: tuple[str, ...] = ()
    """Texts that may be special tokens of the tokenizer, which `make`'s machine looks for."""
    templates: tuple[tuple[str, ...], ...] = ()
    """`auto` takes it for a chat template that holds all texts of one of these."""
    lacks: str = ""
    """Text that such a template does not hold, since it tells of another format."""
    short_ids: bool = False
    """The template takes ids of nine letters and digits alone."""
    block: Callable[[CallGrammar], CallBlock | CallForms | None] = lambda _: None
    """The way in which calls are written, for answers that are held to it; None = none can be."""
    stops: tuple[str, ...] = ()
    """Special tokens that end an answer, also where the model's files do not say so."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """A format of reasoning; as ToolFormat."""

    name: str
    models: str
    make: Callable[[Markers, PromptEnd], TextMachine]
    markers: tuple[str, ...] = ()
    templates: tuple[tuple[str, ...], ...] = ()
    lacks: str = ""
    lead: Callable[[LarkWriter, Markers, PromptEnd], Lead] | None = None
    """The way in which reasoning is written that no single tokens enclose, for answers that are
    held to a form behind it; None = none can be."""
    efforts: tuple[str, ...] = ()
    """Values of `reasoning_effort` that the template knows; empty = it says."""


def _tools(
    name: str, models: str, kind: type[ToolMachine], *templates: tuple[str, ...], **more: Any
) -> ToolFormat:
    closers = kind.closers if issubclass(kind, JsonTools) else ()
    marks = getattr(kind, "marks", ())
    markers = (*kind.openers, *closers, *marks)
    return ToolFormat(name, models, kind, markers, templates, block=kind.block, **more)


def _reasoning(
    name: str, models: str, kind: type[ReasoningMachine], *templates: tuple[str, ...]
) -> ReasoningFormat:
    return ReasoningFormat(
        name, models, kind, (*kind.openers, *kind.closers), templates, lead=kind.lead
    )


def _of_harmony(*_: Any) -> TextMachine:
    raise AssertionError("Harmony's machine reads reasoning and calls in one.")


_HERMES = "</tool_call>"
_HARMONY_TEMPLATE = ("<|channel|>", "<|message|>")

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat(
        HARMONY_TOOLS,
        "gpt-oss",
        _of_harmony,
        HARMONY_MARKERS,
        (_HARMONY_TEMPLATE,),
        block=harmony_forms,
        stops=HARMONY_STOPS,
    ),
    _tools("qwen3_coder", "Qwen3-Coder", XmlTools, ("<function=", "<parameter=")),
    _tools(
        "mistral", "Mistral v3 to v13, Magistral", MistralTools, ("[TOOL_CALLS]",), short_ids=True
    ),
    _tools("granite", "Granite 3", GraniteTools, ("<|start_of_role|>",), lacks=_HERMES),
    _tools("phi4_mini_json", "Phi-4-mini", Phi4MiniTools, ("<|tool|>",), ("functools[",)),
    _tools("pythonic", "Llama 4, ToolACE", PythonicTools, ("<|python_start|>",), ("[func_name1(",)),
    _tools(
        "llama3_json",
        "Llama 3.1 to 3.3",
        LlamaJsonTools,
        ("<|start_header_id|>", "parameters"),
        lacks=_HERMES,
    ),
    _tools(
        "gemma3",
        "Gemma 3, with a template that shows tools",
        Gemma3Tools,
        ("<start_of_turn>", "tool_code"),
        ("<start_of_turn>", "tools"),
    ),
    _tools(
        "hermes", "Hermes 2 to 4, Qwen 2.5 and 3, SmolLM3, Granite 4", HermesTools, ("<tool_call>",)
    ),
)
"""In the order in which `auto` looks."""

REASONING_FORMATS: tuple[ReasoningFormat, ...] = (
    ReasoningFormat(
        HARMONY_REASONING,
        "gpt-oss",
        _of_harmony,
        HARMONY_MARKERS,
        (_HARMONY_TEMPLATE,),
        lead=harmony_lead,
        efforts=("low", "medium", "high"),
    ),
    _reasoning("mistral", "Magistral", MistralReasoning, ("[THINK]",)),
    _reasoning(
        "granite", "Granite 3.2 and 3.3", GraniteReasoning, ("<|start_of_role|>", "thinking")
    ),
    _reasoning(
        "think", "Qwen 3, QwQ, DeepSeek-R1, SmolLM3", ThinkReasoning, ("</think>",), ("<think>",)
    ),
)

_Format = TypeVar("_Format", ToolFormat, ReasoningFormat)


def choose_tool_format(choice: str, template: str | None) -> ToolFormat | None:
    """Return the format that --tool-call-parser names; None for `none` and where `auto` finds none.

    Raises ValueError for an unknown name.
    """
    return _choose(choice, template, TOOL_FORMATS, TOOL_GROUP, "--tool-call-parser")


def choose_reasoning_format(choice: str, template: str | None) -> ReasoningFormat | None:
    """Return the format that --reasoning-parser names; see `choose_tool_format`."""
    return _choose(choice, template, REASONING_FORMATS, REASONING_GROUP, "--reasoning-parser")


def format_names(group: str) -> list[str]:
    """Return the names that a flag takes besides auto and none."""
    own = TOOL_FORMATS if group == TOOL_GROUP else REASONING_FORMATS
    return sorted({*(each.name for each in own), *_foreign(group)})


def _choose(
    choice: str, template: str | None, own: tuple[_Format, ...], group: str, flag: str
) -> _Format | None:
    if choice == "none":
        return None
    if choice == "auto":
        return _of_template(template or "", own)
    found = next((each for each in own if each.name == choice), None)
    if found is None and choice in _foreign(group):
        found = _foreign(group)[choice].load()
    if found is None:
        raise ValueError(
            f"{flag} {choice!r} is not one of auto, none, {', '.join(format_names(group))}; use "
            f"one of these, or install the package that registers it (entry point group {group})."
        )
    return found


def _of_template(template: str, own: tuple[_Format, ...]) -> _Format | None:
    for each in own:
        found = any(all(text in template for text in texts) for texts in each.templates)
        if found and not (each.lacks and each.lacks in template):
            return each
    return None


@cache
def _foreign(group: str) -> Mapping[str, Any]:
    return {point.name: point for point in entry_points(group=group)}
