"""Mistral's tool calls: an array of objects (v3 to v7), or name and arguments (v11 and v13)."""

from __future__ import annotations

import re

from kvasir_engine.grammar.lark import Part, literal, optional, regex, sequence
from kvasir_engine.text.parsing.call_grammar import CallBlock, CallGrammar
from kvasir_engine.text.parsing.json_call import ArgumentsReader
from kvasir_engine.text.parsing.json_tools import JsonTools, array_block
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pieces import find_first
from kvasir_engine.text.parsing.tool_machine import ToolSet

_NAME = re.compile(r"[\w.-]+")
_MAX_HEAD_CHARS = 1024


class MistralTools(JsonTools):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or
    `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}`, where the id and its marker may be missing."""

    openers = ("[TOOL_CALLS]",)
    marks = ("[CALL_ID]", "[ARGS]")

    def __init__(self, tools: ToolSet, markers: Markers) -> None:
        super().__init__(tools, markers)
        self._call_id, self._args = markers.signs(self.marks)

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        call_id, args = cls.marks
        if not calls.is_special(args):
            return array_block(calls, cls.openers[0], cls.openers)
        parts: list[Part] = [calls.marker(args)]
        if calls.is_special(call_id):
            call_ids = calls.lark.terminal(regex("[a-zA-Z0-9]{9}"))
            parts.insert(0, optional(sequence(calls.marker(call_id), call_ids)))
        content = calls.each(lambda name: sequence(literal(name), *parts, calls.arguments(name)))
        return CallBlock(cls.openers[0], content, "", repeated=True, openers=cls.openers)

    def _open(self, opener: str) -> None:
        super()._open(opener)
        self._read = self._form

    def _form(self) -> bool:
        if not self._skip_space():
            return self._wait()
        self._read = self._before_call if self._rest[0] in "[{" else self._head
        return True

    def _head(self) -> bool:
        """Read a name up to its arguments."""
        at, found = find_first(self._rest, (self._args, "{"))
        # A part of the marker may be there already.
        if at > _MAX_HEAD_CHARS and (found or at > _MAX_HEAD_CHARS + len(self._args)):
            return self._broken()
        if not found:
            return self._wait()
        head, _, _ = self._rest[:at].partition(self._call_id)
        name = head.strip()
        if not _NAME.fullmatch(name):
            return self._broken()
        marked = self._rest.startswith(self._args, at)
        self._take(at + (len(self._args) if marked else 0))
        self._reader = ArgumentsReader(name)
        self._read = self._call
        return True
