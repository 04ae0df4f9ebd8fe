"""Tool calls that are JSON objects, alone or in an array, behind a marker or at the beginning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from kvasir_engine.grammar.lark import any_of, literal, sequence
from kvasir_engine.text.parsing.call_grammar import OBJECT, OBJECT_START, CallBlock, CallGrammar
from kvasir_engine.text.parsing.json_call import NamedCallReader
from kvasir_engine.text.parsing.tool_machine import ToolMachine


class JsonTools(ToolMachine):
    """Base: `{"name": ..., "arguments": {...}}`, or an array of them, behind an opener."""

    closers: Sequence[str] = ()
    """Markers that may stand behind a call or an array."""
    separators = ","
    """Characters that may stand between two calls."""
    bare = ""
    """Characters that begin a call at the start of the answer, without a marker; then the name must
    be one of the request's functions."""

    _array = False
    _is_bare = False

    def _start(self) -> bool:
        text = self._rest.lstrip()
        if not text and not self._ended:
            return False
        if self.bare and text and text[0] in self.bare:
            self._is_bare = True
            self._read = self._before_call
        else:
            self._read = self._text
        return True

    def _open(self, opener: str) -> None:
        self._is_bare = False
        self._array = False
        self._read = self._before_call

    def _accepts(self, name: str) -> bool:
        return bool(name) and (not self._is_bare or name in self._tools.parameters)

    def _before_call(self) -> bool:
        if not self._skip_space():
            return self._wait()
        if self._rest[0] == "[" and not self._array:
            self._array = True
            self._take(1)
            return True
        if self._rest[0] != "{":
            return self._broken()
        self._reader = NamedCallReader(self._accepts)
        self._read = self._call
        return True

    def _after_call(self) -> bool:
        if not self._skip_space():
            return self._wait_behind()
        char = self._rest[0]
        if self._array:
            if char == "]":
                self._take(1)
                self._array = False
                self._read = self._close
                return True
        elif char not in self.separators:
            self._read = self._close
            return True
        if char not in self.separators:
            return self._behind()
        self._take(1)
        self._read = self._before_call
        return True

    def _close(self) -> bool:
        """Take a closer, if there is one; a call needs none."""
        if not self._skip_space():
            return self._wait_behind()
        closer = next((each for each in self._closing if self._rest.startswith(each)), "")
        unfinished = any(each.startswith(self._rest) for each in self._closing)
        if not closer and unfinished and not self._ended:
            return False
        self._take(len(closer))
        return self._behind()

    @property
    def _closing(self) -> tuple[str, ...]:
        return self._markers.signs(self.closers)

    def _wait_behind(self) -> bool:
        return self._behind() if self._ended else False

    def _behind(self) -> bool:
        """Go on with the text behind a call; white space is dropped."""
        self._array = False
        self._raw = ""
        self._read = self._text
        return True


def array_block(calls: CallGrammar, opener: str, openers: Sequence[str]) -> CallBlock:
    """Return a block of objects in an array, in a format that has these openers."""
    content = sequence(literal("["), calls.call_objects("arguments", ", "))
    return CallBlock(opener, content, "]", repeated=False, openers=openers)


class HermesTools(JsonTools):
    """Hermes 2 to 4, Qwen 2.5 and 3, Granite 4: `<tool_call>{...}</tool_call>`."""

    openers = ("<tool_call>",)
    closers = ("</tool_call>",)

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        content = sequence(literal("\n"), calls.call_object("arguments"), literal("\n"))
        return CallBlock("<tool_call>", content, "</tool_call>", repeated=True)


class LlamaJsonTools(JsonTools):
    """Llama 3.1 and 3.2: the answer is `{"name": ..., "parameters": {...}}`, several divided by
    `;`, perhaps behind `<|python_tag|>`."""

    openers = ("<|python_tag|>",)
    separators = ";,"
    bare = "{"

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        heads = (OBJECT, '{"type": "function", "name": ') if calls.loose else (OBJECT,)
        objects = calls.call_objects("parameters", "; ", heads)
        names = any_of(literal(json.dumps(name)) for name in calls.schemas)
        begun = sequence(any_of(map(literal, heads)), names)
        start = begun if calls.loose else OBJECT_START
        return CallBlock("", "", "", repeated=False, openers=cls.openers, bare=objects, start=start)

    def _accepts(self, name: str) -> bool:
        return name in self._tools.parameters


class GraniteTools(JsonTools):
    """Granite 3: `<|tool_call|>[{...}, ...]`; with one of 3.0's tokenizers `<tool_call>[...]`."""

    openers = ("<|tool_call|>", "<tool_call>")
    closers = ("</tool_call>",)

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        opener = next(filter(calls.is_special, cls.openers), cls.openers[0])
        return array_block(calls, opener, cls.openers)


class Phi4MiniTools(JsonTools):
    """Phi-4-mini: `functools[{...}]`, or `<|tool_call|>[{...}]<|/tool_call|>`."""

    openers = ("functools", "<|tool_call|>")
    closers = ("<|/tool_call|>",)

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        named, marked = cls.openers
        if not calls.is_special(marked):
            return array_block(calls, named, cls.openers)
        whole = array_block(calls, marked, cls.openers)
        return replace(whole, content=sequence(whole.content, literal("]")), end=cls.closers[0])
