"""Estimate of what a request used when its engine does not say."""

from kvasir_router.admission.ticket import Ticket

_EVENT_BYTES = 200
"""Bytes of a stream for one token: engines write one event a token, of about this size."""

_TEXT_BYTES = 4


def estimate_usage(ticket: Ticket, *, streamed: bool, sent_bytes: int) -> tuple[int, int]:
    """Prompt and output tokens of a request that has reached an engine which did not tell: the
    prompt's estimate, and what `sent_bytes` of an answer are worth. A client that leaves, or an
    engine that dies, has used what was computed so far."""
    output = sent_bytes // (_EVENT_BYTES if streamed else _TEXT_BYTES)
    return ticket.prompt_tokens, min(output, ticket.output_tokens)
