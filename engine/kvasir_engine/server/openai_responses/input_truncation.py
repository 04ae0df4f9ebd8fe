"""Truncation of input that is longer than the model's context, where a request allows it."""

from __future__ import annotations

from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.preparer import Preparer
from kvasir_engine.server.openai.schema import ChatBody

_TOO_LONG = "context_length_exceeded"


async def truncate_input(preparer: Preparer, chat: ChatBody) -> None:
    """Leave the oldest messages out of `chat` until prompt and output fit, system messages at its
    beginning excepted. What is left begins with a user's message, so that no result of a call
    stands without the call. Nothing is left out where even the last such part does not fit.

    Raises ApiError.
    """
    messages = chat.messages
    first = next((at for at, each in enumerate(messages) if each["role"] != "system"), 0)
    starts = [at for at in range(first + 1, len(messages)) if messages[at]["role"] == "user"]
    if await _fits(preparer, chat) or not starts:
        return
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        chat.messages = messages[:first] + messages[starts[middle] :]
        if await _fits(preparer, chat):
            high = middle
        else:
            low = middle + 1
    kept = starts[low] if low < len(starts) else first
    chat.messages = messages[:first] + messages[kept:]


async def _fits(preparer: Preparer, chat: ChatBody) -> bool:
    try:
        prompt = await preparer.chat_prompt(chat)
    except ApiError as error:
        if error.code != _TOO_LONG:
            raise
        return False
    return preparer.leaves_room(chat.model, len(prompt.token_ids), chat.max_completion_tokens)
