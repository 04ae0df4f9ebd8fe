"""Tool calls in the form of Python calls: a list of them, or a block of code."""

from __future__ import annotations

import ast
import json
from typing import Any

from kvasir_engine.text.parsing.json_scanner import is_unicode
from kvasir_engine.text.parsing.tool_machine import ToolMachine

MAX_CALL_CHARS = 256 * 1024
MAX_NESTING = 64
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"true": True, "false": False, "null": None}


class PythonTools(ToolMachine):
    """Base: `NAME(KEY=value, ...)`, given out when the call is whole.

    There is no marker that no other text has, so the name must be one of the request's functions.
    """

    def _open_list(self) -> None:
        self._stack: list[str] = []
        self._quote = ""
        self._at = 0
        """Characters of the rest that were looked at."""
        self._read = self._expression

    def _expression(self) -> bool:
        """Read a call up to its closing bracket."""
        rest = self._rest
        while self._at < len(rest):
            if self._at >= MAX_CALL_CHARS:
                return self._broken()
            char = rest[self._at]
            self._at += 1
            if self._quote:
                if char == "\\":
                    self._at += 1
                elif char == self._quote:
                    self._quote = ""
            elif not self._bracket(char):
                return self._broken()
            elif char == ")" and not self._stack:
                return self._complete(self._at)
        return self._wait()

    def _bracket(self, char: str) -> bool:
        """Take a character outside of strings; False where it cannot belong to a call."""
        if char in "'\"" and self._stack:
            self._quote = char
        elif char in _CLOSERS:
            self._stack.append(_CLOSERS[char])
            return len(self._stack) <= MAX_NESTING and (len(self._stack) > 1 or char == "(")
        elif char in ")]}":
            return bool(self._stack) and self._stack.pop() == char
        elif not self._stack:
            return char.isalnum() or char in "_. \t\n\r"
        return True

    def _complete(self, size: int) -> bool:
        made = parsed_call(self._rest[:size])
        if made is None or made[0] not in self._tools.parameters:
            return self._broken()
        self._take(size)
        self._whole_call(*made)
        self._read = self._after_call
        return True

    def _behind(self) -> bool:
        self._raw = ""
        self._read = self._text
        return True


class PythonicTools(PythonTools):
    """Llama 4, ToolACE, Gemma 3: `[NAME(KEY=value), ...]`, in Llama 4 between `<|python_start|>`
    and `<|python_end|>`. Without the marker it is the beginning of the answer."""

    openers = ("<|python_start|>",)
    marks: tuple[str, ...] = ("<|python_end|>",)

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
        self._open_list()
        return True

    def _after_call(self) -> bool:
        if not self._skip_space():
            return self._behind() if self._ended else False
        char = self._rest[0]
        if char == ",":
            self._take(1)
            self._open_list()
            return True
        if char == "]":
            self._take(1)
            self._read = self._end
            return True
        return self._behind()

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

    def _open(self, opener: str) -> None:
        self._read = self._block

    def _block(self) -> bool:
        if not self._skip_space():
            return self._wait()
        if self._rest[0] == "[":
            self._read = self._list
        else:
            self._open_list()
        return True

    def _after_call(self) -> bool:
        if not self._skip_space() or self._rest[0] in ",]":
            return super()._after_call()
        if self._rest[0] == "`":
            self._read = self._end
        else:
            self._open_list()  # one call a line
        return True


def parsed_call(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments, as JSON, of a Python call; None when it is none.

    Only keywords with literal values are taken. `print(...)` around it and `default_api.` before
    it, as Gemma writes them, are left out.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Call) and _name(call.func) == "print" and len(call.args) == 1:
            call = call.args[0]
        if not isinstance(call, ast.Call) or call.args:
            return None
        name = _name(call.func).removeprefix("default_api.")
        given = {str(each.arg): _literal(each.value) for each in call.keywords if each.arg}
        if not name or len(given) != len(call.keywords):
            return None
        arguments = json.dumps(given, ensure_ascii=False, allow_nan=False)
        return (name, arguments) if is_unicode(arguments) else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        before = _name(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _literal(node: ast.expr) -> Any:
    """The value of a literal, with JSON's names for constants too. Raises ValueError."""
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List):
        return [_literal(each) for each in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [_literal(each) for each in node.keys if each is not None]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    return ast.literal_eval(node)
