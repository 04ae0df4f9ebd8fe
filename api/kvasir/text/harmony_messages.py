"""Chat messages as gpt-oss's template takes them, which writes the Harmony format.

It shows the first call of a message alone, names a result by the call before it, fails on a content
that is null, and refuses a message that has content and reasoning beside a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MARKERS = ("<|channel|>", "<|message|>")


def writes_harmony(source: str) -> bool:
    """Return whether a chat template writes the Harmony format."""
    return all(marker in source for marker in _MARKERS)


def harmony_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation with a message for each call, and its result behind it.

    What a model said before it called stands in its channel of reasoning, as the template writes
    it where there is no other reasoning.
    """
    made: list[dict[str, Any]] = []
    at = 0
    while at < len(messages):
        message = {**messages[at], "content": _content(messages[at])}
        at += 1
        calls = message.pop("tool_calls", None)
        if message.get("role") != "assistant" or not isinstance(calls, list) or not calls:
            made.append(message if not calls else {**message, "tool_calls": calls})
            continue
        end = at
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        made += _one_by_one(_before_calls(message), calls, messages[at:end])
        at = end
    return made


def _content(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    return "" if content is None else content


def _before_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that calls, with all it says in one place."""
    thinking, content = message.get("thinking"), message["content"]
    if not (thinking and content):
        return message
    return {**message, "thinking": f"{thinking}\n{content}", "content": ""}


def _one_by_one(
    message: dict[str, Any], calls: list[Any], results: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a message for each call, what was said before them in the first, and the results,
    by their ids or else in their order."""
    left = [{**each, "content": _content(each)} for each in results]
    made: list[dict[str, Any]] = []
    for number, call in enumerate(calls):
        said = message if number == 0 else {"role": "assistant", "content": ""}
        made.append({**said, "tool_calls": [call]})
        if (result := _result_of(call, left)) is not None:
            left.remove(result)
            made.append(result)
    return made + left


def _result_of(call: Any, results: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the result that names a call, or the first that names none."""
    name = call.get("id") if isinstance(call, Mapping) else None
    for result in results:
        if result.get("tool_call_id") in (None, name):
            return result
    return None
