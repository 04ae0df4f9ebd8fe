"""What a request used, as far as anybody knows."""

from kvasir_router.admission.ticket import Ticket
from kvasir_router.proxy.usage import Usage

_EVENT_BYTES = 200
"""Of a stream for one token: engines write one event a token, of about this size."""

_TEXT_BYTES = 4


def tokens_used(
    ticket: Ticket, usage: Usage | None, *, reached: bool, streamed: bool, sent_bytes: int
) -> tuple[int, int]:
    """Prompt and output tokens. The engine's own count, if it is known; else, when the request has
    `reached` an engine, the prompt's estimate and what `sent_bytes` of an answer are worth: a
    client that leaves, or an engine that dies, has used what was computed so far."""
    if usage is not None:
        return usage.prompt_tokens, usage.completion_tokens
    if not reached:
        return 0, 0
    output = sent_bytes // (_EVENT_BYTES if streamed else _TEXT_BYTES)
    return ticket.prompt_tokens, min(output, ticket.output_tokens)
