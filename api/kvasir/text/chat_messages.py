"""Chat messages as a template takes them: content in the form it reads, known parts only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jinja2 import meta, nodes

from kvasir.text.jinja_environment import environment

ContentFormat = Literal["string", "openai"]
Message = Mapping[str, Any]

TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text"})
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class MessageError(ValueError):
    """A message a text model cannot take. `param` is its place in the body."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def detect_content_format(source: str) -> ContentFormat:
    """ "openai" when the template loops over a message's content parts, else "string".

    Follows assignments (`set content = message.content`) as far as their names.
    """
    tree = environment().parse(source)
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _reads_content(assign.node, set()):
            names.add(assign.target.name)
    for loop in tree.find_all(nodes.For):
        if _reads_content(loop.iter, names):
            return "openai"
    return "string"


def reads_name(source: str, name: str) -> bool:
    """Return whether a template reads a variable that it is given."""
    return name in meta.find_undeclared_variables(environment().parse(source))


def _reads_content(node: nodes.Node, names: set[str]) -> bool:
    """True for `x.content`, `x['content']` or one of `names`, with filters around it or without."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def with_reasoning(message: Message) -> dict[str, Any]:
    """A copy whose reasoning text stands under every name that templates read it by."""
    reasoning = next(
        (message[key] for key in _REASONING_FIELDS if message.get(key) is not None), None
    )
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def normalise_messages(
    messages: Sequence[Any], content_format: ContentFormat
) -> list[dict[str, Any]]:
    """Messages of an OpenAI body in the form a template takes.

    Text parts are joined by a newline for a "string" template; for an "openai" one a string
    becomes one part. Arguments of tool calls in the history become objects. Raises MessageError
    for a message without a role and for parts that are not text.
    """
    return [
        _normalise(message, f"messages[{at}]", content_format)
        for at, message in enumerate(messages)
    ]


def _normalise(message: Any, param: str, content_format: ContentFormat) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise MessageError(param, f"{param} must be an object with a role and a content.")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise MessageError(f"{param}.role", f"{param}.role must be a non-empty string.")
    made = {key: value for key, value in message.items() if value is not None}
    content = message.get("content")
    if content is None:
        made["content"] = None
    elif isinstance(content, str):
        made["content"] = (
            content if content_format == "string" else [{"type": "text", "text": content}]
        )
    else:
        texts = _part_texts(content, f"{param}.content")
        made["content"] = (
            "\n".join(texts)
            if content_format == "string"
            else [{"type": "text", "text": text} for text in texts]
        )
    if isinstance(made.get("tool_calls"), list):
        made["tool_calls"] = [_parse_arguments(call) for call in made["tool_calls"]]
    return made


def _part_texts(parts: Any, param: str) -> list[str]:
    if not isinstance(parts, list):
        raise MessageError(param, f"{param} must be a string or a list of content parts.")
    texts = []
    for at, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if not (isinstance(kind, str) and kind in TEXT_PART_TYPES and isinstance(text, str)):
            raise MessageError(
                f"{param}[{at}]",
                f"{param}[{at}] is a part of type {kind!r}; only text parts, "
                '{"type": "text", "text": "..."}, are supported.',
            )
        texts.append(text)
    return texts


def _parse_arguments(call: Any) -> Any:
    """Templates expect a tool call's arguments as an object; clients send them as JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    arguments = function["arguments"]
    try:
        parsed = json.loads(arguments) if arguments else {}
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": parsed}}
