"""The fields of a request's body that the router reads, in one pass."""

from typing import Any

import msgspec

from kvasir_router.wire.long_bodies.body_scan import BodyError, Outline

MAX_VALUES = 256 * 1024
"""JSON values that are decoded, about: each may take 32 times its bytes in memory. Of a body with
more, only what does not depend on its prompt is read."""

UNREAD: Any = object()
"""Stand for a prompt that was not decoded."""

_GIVEN = msgspec.Raw(b"true")
NOT_GIVEN = msgspec.Raw()
"""Stand for a field that the body does not have."""

_MAX_FIELD = 1024
_MAX_BRACKETS = 1024
_MAX_SHOWN = 60
_MAX_QUOTED = 64 * 1024


class Envelope(msgspec.Struct):
    """The fields that the router looks at. Only the model's type is checked: the rest is the
    engine's to refuse."""

    model: str | None = None
    stream: Any = False
    stream_options: Any = None
    n: Any = 1
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    store: Any = None
    previous_response_id: Any = None
    user: Any = None
    priority: Any = None
    lora_path: Any = None
    lora_request: Any = None
    lora: Any = None
    adapters: Any = None

    # The prompt and what else decides its tokens (kvasir.wire: text_chain, messages_chat). They are
    # decoded with the others: parsing the body's strings a second time would cost as much again.
    messages: Any = None
    prompt: Any = None
    tools: Any = None
    tool_choice: Any = None
    documents: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    add_special_tokens: Any = None
    cache_salt: Any = None
    system: Any = None
    thinking: Any = None
    output_config: Any = None

    resume: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Not decoded: that it is there is enough."""


ADAPTER_FIELDS = ("lora_path", "lora_request", "lora", "adapters")
"""Fields by which engines take a LoRA adapter past `model`: SGLang's, TensorRT-LLM's, that of
llama.cpp and vLLM-Omni, and MLX LM's. Keys are for names in `model`."""

_OUTLINED = Envelope.__struct_fields__[1 : Envelope.__struct_fields__.index("messages")]
"""Fields besides the model and those of the prompt."""
_OF_PROMPTS = Envelope.__struct_fields__[Envelope.__struct_fields__.index("tools") :]
_Outline: Any = msgspec.defstruct(
    "_Outline",
    [("model", str | None, None), *((name, msgspec.Raw, msgspec.Raw()) for name in _OUTLINED)],
)

# Python's own `float`: msgspec takes up to 9 us for a number as 1e308.
_decode_all = msgspec.json.Decoder(Envelope, float_hook=float).decode
_decode_outline = msgspec.json.Decoder(_Outline).decode


OUTLINED = (
    *("messages", "model", "prompt", *_OUTLINED, *_OF_PROMPTS),
    # What keeps a stream from being resumed.
    *("best_of", "use_beam_search"),
    *("logprobs", "prompt_logprobs", "return_token_ids"),
    *("include", "top_logprobs"),
)
"""Members that the outline of a long body tells of."""


def read_outline(body: bytes, outline: Outline) -> Envelope:
    """The envelope of a body by its outline; its prompt is UNREAD. Raises BodyError when `model` is
    no string, msgspec.DecodeError when it is no UTF-8."""
    model = outline.raw(body, "model")
    if model and (not model.startswith(b'"') or len(model) > _MAX_QUOTED):
        raise BodyError("`model` must be a string.", "model")
    envelope = Envelope(messages=UNREAD, prompt=UNREAD)
    if "resume" in outline.members:
        envelope.resume = _GIVEN
    envelope.model = msgspec.json.decode(model, type=str) if model else None
    for name in _OUTLINED:
        _set_field(envelope, name, outline.raw(body, name))
    return envelope


def decode_envelope(body: bytes) -> Envelope:
    """The envelope of a JSON body; its prompt is UNREAD where the body is dense. Raises
    msgspec.ValidationError when `model` is no string, DecodeError when it is no JSON."""
    if not is_dense(body):
        return _decode_all(body)
    outline = _decode_outline(body)
    envelope = Envelope(model=outline.model, messages=UNREAD, prompt=UNREAD)
    if b'"resume"' in body:
        envelope.resume = _GIVEN
    for name in _OUTLINED:
        _set_field(envelope, name, getattr(outline, name))
    return envelope


def _set_field(envelope: Envelope, name: str, raw: bytes | msgspec.Raw) -> None:
    """Set a field from its JSON, unless that is long. One that would choose an adapter is refused,
    whatever it is, so that it is given is enough."""
    if 0 < len(raw) <= _MAX_FIELD:
        setattr(envelope, name, msgspec.json.decode(raw))
    elif len(raw) and name in ADAPTER_FIELDS:
        setattr(envelope, name, "...")


def adapter_problem(envelope: Envelope) -> tuple[str, str] | None:
    """Return why a body is refused that chooses a LoRA adapter otherwise than by `model`, in a
    sentence, and the field to blame; None if it does not."""
    for name in ADAPTER_FIELDS:
        value = getattr(envelope, name)
        if value is not None:
            problem = (
                f"`{name}` is {_shown(value)}: LoRA adapters are chosen by `model` alone; put the "
                f"adapter's name there and leave `{name}` out."
            )
            return problem, name
    return None


class DenseBodyError(Exception):
    """A body that would have to be edited, and has too many values for that."""

    def __init__(self) -> None:
        super().__init__(f"The body holds more than {MAX_VALUES} values; send a shorter one.")


def is_bracketed(body: bytes) -> bool:
    """Return whether so much of a body may be arrays and objects that decoding it all takes long:
    each costs several times what its bytes do. Those within strings count, too."""
    if len(body) < _MAX_BRACKETS:
        return False
    return 16 * (body.count(b"[") + body.count(b"{")) > len(body) + 16 * _MAX_BRACKETS


def is_dense(body: bytes) -> bool:
    """Return whether the body may hold more than MAX_VALUES values."""
    # A value takes two bytes at least, with the comma or bracket that it comes with. Counting costs
    # more than decoding where one long string is nearly everything.
    if len(body) < 2 * MAX_VALUES:
        return False
    # Each value but the first follows one of these; those within strings are counted, too.
    return len(body) - len(body.translate(None, b",[{")) > MAX_VALUES


def refusal(body: bytes, error: Exception) -> tuple[str, str | None]:
    """Return why a body could not be decoded, in a sentence, and the field to blame if one is."""
    if not body.strip():
        return "The body is empty: send a JSON object with the `model` to use.", None
    if isinstance(error, UnicodeDecodeError):
        return "The body is not UTF-8: JSON is written in it.", None
    if isinstance(error, RecursionError):
        return "The body is nested too deeply for a request.", None
    if not isinstance(error, msgspec.ValidationError):
        return f"The body is not a JSON object: {error}.", None
    if len(body) > _MAX_QUOTED:  # what is wrong is not worth reading so much again
        return "The body must be a JSON object, and its `model` a string.", None
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # behind the `model`
        return "`model` must be a string.", "model"
    if not isinstance(content, dict):
        return f"The body must be a JSON object, not {_shown(content)}.", None
    return f"`model` must be a string, not {_shown(content['model'])}.", "model"


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value)[: _MAX_SHOWN + 1].decode(errors="ignore")
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
