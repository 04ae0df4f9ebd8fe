"""Qwen3-Coder's tool calls: a tag for the function and one for each parameter."""

from __future__ import annotations

import json

from kvasir_engine.grammar.lark import Part, literal, sequence
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.text.parsing.call_grammar import CallBlock, CallGrammar
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pieces import Kind, Piece, find_first, held_back
from kvasir_engine.text.parsing.schema_values import ValueForm, json_of
from kvasir_engine.text.parsing.tool_machine import ToolMachine, ToolSet
from kvasir_engine.text.parsing.xml.value_end import ValueEnd
from kvasir_engine.text.parsing.xml.xml_grammar import (
    FUNCTION_END,
    MAX_NAME_CHARS,
    NAME,
    PARAMETER,
    PARAMETER_END,
    VALUE_ENDS,
    xml_arguments,
)

_FUNCTION = "<function="
_BREAKS = tuple(f"\n{end}" for end in VALUE_ENDS) + VALUE_ENDS
_NESTED = ("array", "object")


class XmlTools(ToolMachine):
    """`<tool_call><function=NAME><parameter=NAME>value</parameter>...</function></tool_call>`.

    A value is text; the function's schema says whether it is to become something else. Strings are
    given out as they come, other values when they are whole.
    """

    openers = ("<tool_call>", "<function=")
    marks = ("</tool_call>",)

    def __init__(self, tools: ToolSet, markers: Markers) -> None:
        super().__init__(tools, markers)
        (self._closer,) = markers.signs(self.marks)
        self._function = ""
        self._form = ValueForm()
        self._value_end = ValueEnd(_BREAKS, is_json=False)
        self._count = 0

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        content = calls.each(
            lambda name: sequence(
                literal(f"\n{_FUNCTION}{name}>\n"),
                cls._arguments(calls, name),
                literal(f"{FUNCTION_END}\n"),
            )
        )
        return CallBlock(cls.openers[0], content, cls.marks[0], repeated=True, openers=cls.openers)

    @staticmethod
    def _arguments(calls: CallGrammar, name: str) -> Part:
        try:
            return xml_arguments(calls.lark, calls.schemas[name])
        except SchemaError:
            if name in calls.strict:
                raise
            return xml_arguments(calls.lark, {})

    def _open(self, opener: str) -> None:
        self._count = 0
        self._read = self._name if opener == _FUNCTION else self._tag

    def _tag(self) -> bool:
        if not self._skip_space():
            return self._wait()
        if self._rest.startswith(_FUNCTION):
            self._take(len(_FUNCTION))
            self._read = self._name
            return True
        return self._wait() if _FUNCTION.startswith(self._rest) else self._broken()

    def _name(self) -> bool:
        name = self._to_bracket()
        if name is None:
            return self._wait()
        if not NAME.fullmatch(name):
            return self._broken()
        self._function = name
        self._read = self._inside
        return True

    def _to_bracket(self) -> str | None:
        """Take a name and its `>`; None while that is to come, "" where it is no name's end."""
        at = self._rest.find(">")
        if at > MAX_NAME_CHARS or (at < 0 and len(self._rest) > MAX_NAME_CHARS):
            return ""
        return None if at < 0 else self._take(at + 1)[:-1].strip()

    def _inside(self) -> bool:
        """Read the next parameter's tag or the function's end."""
        if not self._skip_space():
            return self._wait()
        if self._rest.startswith(PARAMETER):
            self._take(len(PARAMETER))
            self._read = self._parameter_name
            return True
        if self._rest.startswith(FUNCTION_END):
            self._take(len(FUNCTION_END))
            self._begin()
            self._pieces += [
                Piece(Kind.ARGUMENTS, "}" if self._count else "{}"),
                Piece(Kind.CALL_END),
            ]
            self._read = self._close
            return True
        unfinished = any(tag.startswith(self._rest) for tag in (PARAMETER, FUNCTION_END))
        return self._wait() if unfinished else self._broken()

    def _parameter_name(self) -> bool:
        name = self._to_bracket()
        if name is None:
            return self._wait()
        if not NAME.fullmatch(name):
            return self._broken()
        self._begin()
        self._emit(Kind.ARGUMENTS, f"{', ' if self._count else '{'}{json.dumps(name)}: ")
        self._count += 1
        self._form = self._tools.value_form(self._function, name)
        self._value_end = ValueEnd(_BREAKS, is_json=not self._form.kinds.isdisjoint(_NESTED))
        self._read = self._string_start if self._form.is_text else self._value
        return True

    def _begin(self) -> None:
        """The call is certain: its name and the first of its tags were read."""
        if self._raw:
            self._certain()
            if not self._count:
                self._pieces.append(Piece(Kind.CALL, self._function))

    def _string_start(self) -> bool:
        """Drop the line break that a value begins with."""
        if not self._rest and not self._ended:
            return False
        if self._rest.startswith("\n") and not self._rest.startswith(tuple(_BREAKS[:3])):
            if not self._ended and any(end.startswith(self._rest) for end in _BREAKS[:3]):
                return False
            self._rest = self._rest[1:]
        self._emit(Kind.ARGUMENTS, '"')
        self._read = self._string
        return True

    def _string(self) -> bool:
        at, end = find_first(self._rest, _BREAKS)
        if end:
            self._escaped(self._rest[:at])
            self._emit(Kind.ARGUMENTS, '"')
            return self._end_value(at, end)
        kept = len(self._rest) - held_back(self._rest, _BREAKS)
        self._escaped(self._rest[:kept])
        self._rest = self._rest[kept:]
        return self._truncated() if self._ended else False

    def _value(self) -> bool:
        found = self._value_end.find(self._rest, last=self._ended)
        if found is None:
            return self._truncated() if self._ended else False
        at, end = found
        self._emit(Kind.ARGUMENTS, json_of(self._rest[:at].removeprefix("\n"), self._form))
        return self._end_value(at, end)

    def _escaped(self, text: str) -> None:
        self._emit(
            Kind.ARGUMENTS, json.dumps(self._markers.restore(text), ensure_ascii=False)[1:-1]
        )

    def _end_value(self, at: int, end: str) -> bool:
        own = end.endswith(PARAMETER_END)
        self._rest = self._rest[at + len(end) if own else at :]
        self._read = self._inside
        return True

    def _truncated(self) -> bool:
        """The answer ends within a value: what was read of it stands."""
        self._rest = ""
        self._read = self._text
        return True

    def _close(self) -> bool:
        if not self._skip_space():
            return self._behind() if self._ended else False
        if self._closer.startswith(self._rest) and self._rest != self._closer and not self._ended:
            return False
        if self._rest.startswith(self._closer):
            self._take(len(self._closer))
        return self._behind()

    def _behind(self) -> bool:
        self._raw = ""
        self._read = self._text
        return True
