"""Tool calls in the form of Python calls: a list of them, or a block of code."""

from __future__ import annotations

import re
from functools import partial

from kvasir_engine.text.parsing.call_grammar import CallBlock, CallGrammar
from kvasir_engine.text.parsing.pythonic.python_grammar import (
    python_calls,
    python_list,
    python_start,
)
from kvasir_engine.text.parsing.pythonic.python_reader import PythonCallReader
from kvasir_engine.text.parsing.tool_machine import ToolMachine

_MAX_HEAD_CHARS = 128
_NAME = re.compile(r"[\w.-]+\s*")
_API = "default_api."
"""Module that Gemma's guide has the functions in."""


class PythonTools(ToolMachine):
    """Base: `NAME(KEY=value, ...)`.

    There is no marker that no other text has, so the name must be one of the request's functions.
    `print(...)` around a call and `default_api.` before it, as Gemma writes them, are left out.
    """

    _wrapped = False
    """`print(` stands before the call."""

    def _open_call(self) -> bool:
        self._wrapped = False
        self._read = self._head
        return True

    def _head(self) -> bool:
        """Read a name and the bracket behind it."""
        if not self._skip_space():
            return self._wait()
        at = self._rest.find("(")
        if at < 0:
            text = self._rest[: _MAX_HEAD_CHARS + 1]
            possible = len(text) <= _MAX_HEAD_CHARS and _NAME.fullmatch(text)
            return self._wait() if possible else self._broken()
        name = self._rest[:at].rstrip()
        if at > _MAX_HEAD_CHARS or not _NAME.fullmatch(name):
            return self._broken()
        if name not in self._tools.parameters:
            if name == "print" and not self._wrapped:
                self._wrapped = True
                self._take(at + 1)
                return True
            name = name.removeprefix(_API)
        if name not in self._tools.parameters:
            return self._broken()
        self._take(at + 1)
        self._reader = PythonCallReader(name, partial(self._tools.value_form, name))
        self._read = self._call
        return True

    def _after_call(self) -> bool:
        if not self._skip_space():
            return self._behind() if self._ended else False
        if self._wrapped:
            if self._rest[0] != ")":
                return self._behind()
            self._wrapped = False
            self._take(1)
            return True
        return self._next_call()

    def _next_call(self) -> bool:
        raise NotImplementedError

    def _behind(self) -> bool:
        self._raw = ""
        self._read = self._text
        return True


class PythonicTools(PythonTools):
    """Llama 4, ToolACE, Gemma 3: `[NAME(KEY=value), ...]`, in Llama 4 between `<|python_start|>`
    and `<|python_end|>`. Without the marker it is the beginning of the answer."""

    openers = ("<|python_start|>",)
    marks: tuple[str, ...] = ("<|python_end|>",)

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        bare, start = python_list(calls), python_start(calls)
        opener, end = cls.openers[0], cls.marks[0]
        if not (calls.is_special(opener) and calls.is_special(end)):
            opener = end = ""
        return CallBlock(
            opener, bare, end, repeated=False, openers=cls.openers, bare=bare, start=start
        )

    def _start(self) -> bool:
        text = self._rest.lstrip()
        if not text and not self._ended:
            return False
        self._read = self._list if text.startswith("[") else self._text
        return True

    def _open(self, opener: str) -> None:
        self._read = self._list

    def _list(self) -> bool:
        if not self._skip_space():
            return self._wait()
        if self._rest[0] != "[":
            return self._broken()
        self._take(1)
        return self._open_call()

    def _next_call(self) -> bool:
        char = self._rest[0]
        if char not in ",]":
            return self._behind()
        self._take(1)
        if char == ",":
            return self._open_call()
        self._read = self._end
        return True

    def _end(self) -> bool:
        if not self._skip_space():
            return self._behind() if self._ended else False
        (mark,) = self._markers.signs(self.marks[:1])
        if self._rest.startswith(mark):
            self._take(len(mark))
        elif mark.startswith(self._rest) and not self._ended:
            return False
        return self._behind()


class Gemma3Tools(PythonicTools):
    """Gemma 3: a list of calls, or a code block that Google's guide names `tool_code`."""

    openers = ("```tool_code",)
    marks = ("```",)

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock:
        """ToolMachine.block."""
        return CallBlock(
            cls.openers[0],
            python_calls(calls),
            cls.marks[0],
            repeated=False,
            openers=cls.openers,
            bare=python_list(calls),
            start=python_start(calls),
        )

    def _open(self, opener: str) -> None:
        self._read = self._block

    def _block(self) -> bool:
        if not self._skip_space():
            return self._wait()
        if self._rest[0] != "[":
            return self._open_call()
        self._read = self._list
        return True

    def _next_call(self) -> bool:
        if self._rest[0] in ",]":
            return super()._next_call()
        if self._rest[0] != self._markers.signs(self.marks)[0][0]:
            return self._open_call()  # one call a line
        self._read = self._end
        return True
