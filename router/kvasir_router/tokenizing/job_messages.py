"""Messages between the router and a tokenising process: frames of a length and MessagePack."""

from typing import BinaryIO

import msgspec

MAX_BODY_BYTES = 4 * 2**20
"""Maximum bytes of a request that is tokenised: four times the text that is hashed
(kvasir.wire.text_chain)."""
LENGTH_BYTES = 4


class Job(msgspec.Struct, array_like=True):
    """Job to tokenise one prompt; with an empty body, only a tokenizer to load."""

    number: int
    tokenizer: str
    """A directory, or what else `kvasir serve` takes for a model."""
    chat: bool = False
    body: bytes = b""
    lora: str = ""
    known: int = 0
    """Leading text blocks that need not be told again."""
    claimed: int = 0
    """KV blocks that these determine."""
    block_size: int = 16
    seed: bytes = b""
    """That of the fleet's hashes."""


class Made(msgspec.Struct, array_like=True):
    """The answer to a job: of each text block from `known` on, the KV blocks it determines."""

    number: int
    kv_blocks: list[int] = []
    kv_hashes: bytes = b""
    refused: str = ""
    """Reason for which this prompt cannot be tokenised: the engine will say so to the client."""
    broken: str = ""
    """Reason for which this tokenizer cannot be used for any prompt."""


_encoder = msgspec.msgpack.Encoder()
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_made = msgspec.msgpack.Decoder(Made).decode


def frame(message: Job | Made) -> bytes:
    """A message as it goes through the pipe."""
    content = _encoder.encode(message)
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


def read_job(stream: BinaryIO) -> Job | None:
    """The next job; None at the end, when the router has gone."""
    length = stream.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    content = stream.read(int.from_bytes(length, "little"))
    return decode_job(content)
