"""Fields of engines' JSON that the router reads, apart from the modules that are compiled, where
msgspec would not see their types."""

from typing import Any

import msgspec


class UsageDetails(msgspec.Struct):
    """Details of the prompt's tokens."""

    cached_tokens: int | None = None


class UsageFields(msgspec.Struct):
    """OpenAI's usage object, with the names of completions or those of newer endpoints, or
    Anthropic's."""

    prompt_tokens: int | None = None
    completion_tokens: int = 0
    prompt_tokens_details: UsageDetails | None = None
    input_tokens: int | None = None
    output_tokens: int = 0
    input_tokens_details: UsageDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class ErrorFields(msgspec.Struct):
    """OpenAI's error object."""

    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of an answer that is an error."""

    error: ErrorFields


class _SomeError(msgspec.Struct):
    error: Any


read_usage = msgspec.json.Decoder(UsageFields).decode
"""Raise msgspec.MsgspecError, as the next one does."""
read_error = msgspec.json.Decoder(ErrorBody).decode
_read_some_error = msgspec.json.Decoder(_SomeError).decode


def tells_of_error(body: bytes) -> bool:
    """Return whether OpenAI's clients take an event of this for an error, whatever is in it."""
    try:
        return bool(_read_some_error(body).error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
