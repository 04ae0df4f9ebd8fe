"""A publisher of block events as vLLM's."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

import kvasir_engine

BLOCK = 16


TINY = Path(kvasir_engine.__file__).parent / "assets" / "tiny"


class ForeignPublisher:
    """Block events in one of the shapes that vLLM has sent: arrays with integer hashes, or maps
    with hashes of 32 bytes. Which they are depends on nothing that a router could know."""

    def __init__(self, shape: str, seed: int) -> None:
        self._shape = shape
        self._random = random.Random(seed)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._number = 0

    def stored(self, token_ids: Sequence[int]) -> None:
        """All full blocks of a prompt are in the cache."""
        count = len(token_ids) // BLOCK
        hashes = [self._hash() for _ in range(count)]
        fields = {
            "block_hashes": hashes,
            "parent_block_hash": None,
            "token_ids": list(token_ids[: count * BLOCK]),
            "block_size": BLOCK,
        }
        if self._shape == "maps":
            batch: Any = {"ts": 1.0, "events": [{"type": "BlockStored", **fields, "medium": "GPU"}]}
        else:
            batch = [1.0, [["BlockStored", *fields.values(), None]]]
        number = self._number.to_bytes(8, "big")
        self._socket.send_multipart([b"kv@host@m", number, msgspec.msgpack.encode(batch)])
        self._number += 1

    def _hash(self) -> int | bytes:
        return self._random.randbytes(32) if self._shape == "maps" else self._random.getrandbits(64)

    def close(self) -> None:
        self._context.destroy(linger=0)
