"""POST /v2/models/{name}/infer: BYTES tensors of prompts in, one of completions out.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.body_parser import parse_body
from kvasir_engine.server.openai.completions import CompletionAnswer
from kvasir_engine.server.openai.preparer import PreparedRequest, Preparer
from kvasir_engine.server.openai.schema import CompletionBody

OUTPUT = "text_output"
INPUT = "text_input"
MAX_ID_CHARS = 256
_NOT_PARAMETERS = (
    *("model", "prompt", "stream", "stream_options", "resume", "echo", "n", "best_of"),
    *("logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"),
)
"""Fields that the inputs say already, or that the answer, one tensor of texts, cannot hold."""


class Tensor(msgspec.Struct, kw_only=True):
    """Input tensor: a BYTES tensor whose elements are strings."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class RequestedOutput(msgspec.Struct, kw_only=True):
    """An output that the caller asks for by name."""

    name: str


class InferBody(msgspec.Struct, kw_only=True):
    """The request. `parameters` are the sampling fields of /v1/completions."""

    inputs: list[Tensor]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[RequestedOutput] | None = None


def completion_body(body: InferBody, model: str) -> CompletionBody:
    """The completion request that `body` means. Raises ApiError (400)."""
    for name in _NOT_PARAMETERS:
        if name in body.parameters:
            raise invalid(f"parameters.{name} has no place here; use /v1/completions.", name)
    for name in body.parameters:
        if name not in CompletionBody.__struct_fields__:
            raise invalid(f"parameters.{name[:64]} is not a sampling parameter.", "parameters")
    if body.id is not None and len(body.id) > MAX_ID_CHARS:
        raise invalid(f"id has more than {MAX_ID_CHARS} characters.", "id")
    for output in body.outputs or ():
        if output.name != OUTPUT:
            raise invalid(
                f"outputs: {output.name[:64]!r} is not there; the output is {OUTPUT}.", "outputs"
            )
    fields = {**body.parameters, "model": model, "prompt": _texts(body.inputs)}
    try:
        return msgspec.convert(fields, CompletionBody)
    except msgspec.ValidationError as error:
        raise invalid(f"parameters: {error}.", "parameters") from error


def _texts(inputs: list[Tensor]) -> list[str]:
    if len(inputs) != 1:
        raise invalid(f"inputs must be one tensor, {INPUT}; there are {len(inputs)}.", "inputs")
    [tensor] = inputs
    if tensor.datatype != "BYTES" or not all(isinstance(text, str) for text in tensor.data):
        raise invalid(f"inputs: {INPUT} must be strings with the datatype BYTES.", "inputs")
    if min(tensor.shape, default=0) < 1 or math.prod(tensor.shape) != len(tensor.data):
        raise invalid(
            f"inputs: shape {tensor.shape[:8]} does not hold {len(tensor.data)} strings.",
            "inputs",
        )
    return tensor.data


async def prepare_infer(
    preparer: Preparer, raw: bytes, model: str, request_id: str
) -> PreparedRequest:
    """Prepare an inference by `model`. Raises ApiError."""
    given = parse_body(raw, InferBody)
    prepared = await preparer.completion_of(completion_body(given, model), request_id)
    prepared.answer_id = given.id
    return prepared


class InferAnswer(CompletionAnswer):
    """The answer: the completions' texts as one tensor, in the order of the prompts."""

    def __init__(
        self, generation: Generation, body: CompletionBody, *, infer_id: str | None, **options: Any
    ) -> None:
        super().__init__(generation, body, **options)
        self._id = infer_id or self.envelope["id"]

    def body(self) -> dict[str, Any]:
        """See Answer."""
        texts = [choice.sample.text for choice in self.choices.values()]
        output = {"name": OUTPUT, "shape": [len(texts)], "datatype": "BYTES", "data": texts}
        return {
            "model_name": self.envelope["model"],
            "id": self._id,
            "parameters": {"usage": self.usage},
            "outputs": [output],
        }


def error_body(error: ApiError) -> dict[str, str]:
    """An error as this protocol's clients expect it."""
    return {"error": error.message}
