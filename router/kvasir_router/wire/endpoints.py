"""The table of endpoints: every route that clients may ask for, once, and how it is handled.

A path is looked up as it came, with nothing in it decoded or shortened, and is sent on as it came.
So what has no row here, such as an engine's administration, is reached by no spelling of it.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route. Those with POST and a body go to a replica; the router answers the others."""

    path: str
    methods: tuple[str, ...] = ("POST",)
    body: Literal["none", "json", "form"] = "json"
    """`form`: a multipart form, or JSON."""

    prompt: Literal["none", "messages", "prompt", "input", "documents", "system", "items"] = "none"
    """Fields of the body that make the prompt: `documents` stands for a query and documents or two
    texts, `system` for Anthropic's `system` and `messages`, `items` for OpenAI's
    `instructions` and `input` of responses, `none` for no text to be computed."""

    usage: Literal["none", "prompt", "completion", "message"] = "none"
    """Names in the answer's `usage`: `prompt_tokens` alone; with `completion_tokens`, for which a
    stream has an event of its own if asked; or `input_tokens` and `output_tokens`."""

    computed: bool = True
    """A model computes for it; else a key pays a request and no tokens."""

    retried: bool = True
    """May be sent to another replica when one may have begun with it; one that is `resumed`, in any
    case by an engine of Kvasir's, which keeps nothing."""

    resumed: bool = False
    """A broken stream of it may migrate to another replica."""

    hedged: bool = True
    """May be computed by two replicas at once."""

    events: Literal["completion", "message", "response"] = "completion"
    """Protocol of its streams: OpenAI's chunks up to `[DONE]`, Anthropic's events, or OpenAI's
    numbered events of responses."""

    errors: Literal["openai", "anthropic"] = "openai"
    """Form of the router's own errors."""


def _local(path: str) -> Endpoint:
    return Endpoint(path, ("GET", "HEAD"), "none", retried=False, hedged=False)


HEALTH = _local("/health")
READY = _local("/ready")
METRICS = _local("/metrics")
MODEL_PREFIX = "/v1/models/"
RESPONSE_PREFIX = "/v1/responses/"
ONE_RESPONSE = Endpoint(
    f"{RESPONSE_PREFIX}{{response}}",
    ("GET", "HEAD", "DELETE", "POST"),
    "none",
    retried=False,
    hedged=False,
)
"""A response that the router keeps."""
ONE_MODEL = _local(f"{MODEL_PREFIX}{{model}}")
UNKNOWN = Endpoint("", (), "none", retried=False, hedged=False)
"""Stand for every path that is not in the table."""

ENDPOINTS = (
    Endpoint("/v1/chat/completions", prompt="messages", usage="completion", resumed=True),
    Endpoint("/v1/completions", prompt="prompt", usage="completion", resumed=True),
    # An engine of others may store the answer, or compute it after it has told its id.
    Endpoint(
        "/v1/responses",
        prompt="items",
        usage="message",
        retried=False,
        resumed=True,
        hedged=False,
        events="response",
    ),
    Endpoint(
        "/v1/messages",
        prompt="system",
        usage="message",
        resumed=True,
        events="message",
        errors="anthropic",
    ),
    Endpoint("/v1/messages/count_tokens", computed=False, errors="anthropic"),
    Endpoint("/v1/embeddings", prompt="input", usage="prompt"),
    Endpoint("/v1/classify", prompt="input", usage="prompt"),
    Endpoint("/v1/score", prompt="documents", usage="prompt"),
    Endpoint("/v1/rerank", prompt="documents", usage="prompt"),
    Endpoint("/v1/tokenize", computed=False),
    Endpoint("/v1/detokenize", computed=False),
    Endpoint("/v1/audio/transcriptions", body="form"),
    Endpoint("/v1/audio/translations", body="form"),
    Endpoint("/v1/audio/speech", prompt="input"),
    Endpoint("/v1/images/generations"),
    Endpoint("/v1/images/edits", body="form"),
    Endpoint("/v1/images/variations", body="form"),
    Endpoint("/v2/rerank", prompt="documents", usage="prompt"),
    Endpoint("/rerank", prompt="documents", usage="prompt"),
    Endpoint("/score", prompt="documents", usage="prompt"),
    Endpoint("/classify", prompt="input", usage="prompt"),
    Endpoint("/pooling", prompt="input", usage="prompt"),
    Endpoint("/tokenize", computed=False),
    Endpoint("/detokenize", computed=False),
    _local("/v1/models"),
    _local("/models"),
    ONE_MODEL,
    ONE_RESPONSE,
    HEALTH,
    READY,
    METRICS,
)

_by_path = {endpoint.path: endpoint for endpoint in ENDPOINTS}


def endpoint_of(path: str) -> Endpoint:
    """Return the path's row of the table, or UNKNOWN."""
    found = _by_path.get(path)
    if found is None:
        if path.startswith(MODEL_PREFIX):
            return ONE_MODEL
        return ONE_RESPONSE if path.startswith(RESPONSE_PREFIX) else UNKNOWN
    return found
