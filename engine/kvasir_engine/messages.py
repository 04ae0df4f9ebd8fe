"""Messages between API processes and the core, and their encoding (msgspec, MessagePack).

API process -> core: `Hello`, `Add`, `Abort`, `Finish`, `Drain`. Core -> API process:
`Accepted`, `Rejected`, `StepTokens`, `Drained`. Every frame is one message; the type is its tag.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import msgspec

from kvasir_engine.request import EngineRequest, SampleDelta


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """API process `client` has started; answered by `CoreInfo`.

    What an earlier process of this number still has running is aborted.
    """

    client: int
    incarnation: int
    """A number that no earlier process of this client has had."""


class Add(msgspec.Struct, tag="add", array_like=True):
    """Admit a request. Answered by `Accepted` or `Rejected` before any token."""

    request: EngineRequest
    """Without its prompt's ids (`whole`)."""
    incarnation: int
    """The sender's: requests of a process that has ended are dropped, however late they arrive."""
    prompt_ids: bytes
    """Little-endian 32-bit integers: a list would be decoded one by one, in the core's loop."""

    @classmethod
    def of(cls, request: EngineRequest, incarnation: int) -> Add:
        """Return the message that admits `request`, which stays as it is. Its ids were checked:
        raises OverflowError for one of more than 32 bits."""
        ids = array("i", request.prompt_token_ids).tobytes()
        return cls(replace(request, prompt_token_ids=[]), incarnation, ids)

    def whole(self) -> EngineRequest:
        """Return the request with its prompt's ids, as an array. Raises ValueError for half an
        id."""
        self.request.prompt_token_ids = array("i", self.prompt_ids)
        return self.request


class Abort(msgspec.Struct, tag="abort", array_like=True):
    """Drop every sample of the requests with these handles. Nothing is answered."""

    handles: list[int]


class Finish(msgspec.Struct, tag="finish", array_like=True):
    """Sample that met a stop string: free it. Nothing is answered; the API process has cut it."""

    handle: int


class Drain(msgspec.Struct, tag="drain", array_like=True):
    """Admit nothing from now on; answer `Drained` to `client` when the last request has ended."""

    client: int


class ResetPrefixCache(msgspec.Struct, tag="reset", array_like=True):
    """Forget all cached prompt blocks. Nothing is answered."""


ToCore = Hello | Add | Abort | Finish | Drain | ResetPrefixCache


class Accepted(msgspec.Struct, tag="ok", array_like=True):
    """The request waits or runs; headers may be sent."""

    handle: int


class Rejected(msgspec.Struct, tag="no", array_like=True):
    """The request was not admitted: HTTP `status` 429 (queue full), 503 (draining) or 400."""

    handle: int
    status: int
    message: str
    param: str | None = None
    retry_after: int | None = None
    """Seconds, for 429 and 503."""


class StepTokens(msgspec.Struct, tag="step", array_like=True):
    """New tokens of one step for one API process.

    The common case (one token, no logprobs, not finished) travels as two packed arrays of
    little-endian 32-bit integers, `handles` and `tokens`; everything else as deltas.
    """

    handles: bytes
    tokens: bytes
    deltas: list[SampleDelta] = []


class Drained(msgspec.Struct, tag="drained", array_like=True):
    """Answer to `Drain` once nothing runs or waits any more."""


class CoreInfo(msgspec.Struct, tag="ready", array_like=True):
    """The core serves, and these are its sizes. `max_model_len` is the one after sizing."""

    max_model_len: int
    block_size: int
    vocab_size: int
    num_blocks: list[int]
    """Blocks of each KV group."""
    startup_seconds: dict[str, float]
    dtype: str = ""
    """Data type that the model computes in, as --dtype names it."""
    quantization: str | None = None
    """Quantisation of the model's weights; None = none."""
    kv_cache_dtype: str = ""
    """Type of keys and values: "fp8", or the model's."""
    prefix_seed: bytes = b""
    """Key of the block hashes, for those that prompts bring with them."""


FromCore = Accepted | Rejected | StepTokens | Drained | CoreInfo

encoder = msgspec.msgpack.Encoder()
to_core_decoder: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
from_core_decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
