"""Hashes of token blocks: the identity of a KV block wherever it is looked up.

A block's hash chains its parent's hash, its own token ids and the extra keys that make equal
tokens give different KV (LoRA, cache salt, media): 128-bit xxh3. The first block's parent is the
hash of the extra keys, so that every block of a salted request differs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import xxhash

HASH_BYTES = 16

_ROOT = xxhash.xxh3_128_digest(b"kvasir.block.v1")


def root_hash(*, cache_salt: str = "", lora: str = "") -> bytes:
    """The parent of a sequence's first block, 16 bytes."""
    if not cache_salt and not lora:
        return _ROOT
    salt = cache_salt.encode()
    # The salt's length keeps it apart from the adapter's name, whatever bytes either has.
    extra = (_ROOT, len(salt).to_bytes(8, "little"), salt, lora.encode())
    return xxhash.xxh3_128_digest(b"".join(extra))


def block_hash(parent: bytes, token_bytes: bytes) -> bytes:
    """The hash of one full block, 16 bytes; `token_bytes` are little-endian 32-bit token ids."""
    return xxhash.xxh3_128_digest(parent + token_bytes)


def chain_hashes(token_ids: Sequence[int], block_size: int, *, root: bytes = _ROOT) -> bytes:
    """Hashes of every full block of `token_ids`, concatenated (16 bytes each)."""
    tokens = array("i", token_ids).tobytes()
    step = 4 * block_size
    parent = root
    out = bytearray()
    for start in range(0, len(tokens) - step + 1, step):
        parent = block_hash(parent, tokens[start : start + step])
        out += parent
    return bytes(out)
