"""Hashes of token blocks: the identity of a KV block wherever it is looked up.

A block's hash is BLAKE2b, 128 bits, of its parent's hash and its own token ids. The first block's
parent is the sequence's root: a keyed hash of what else makes equal tokens give different KV (cache
salt, LoRA). The key, the prefix seed, is made of the fleet secret and the model's revision, so it
is equal on the replicas, ranks and routers of a fleet and known to nobody else.

Why not a faster hash that is not cryptographic: xxh3, of 80 bytes, takes its first 16 (the parent)
into account in its last round only. Two blocks that are alike to it in the rounds before collide
after any parent, so a secret root would not keep anyone from preparing them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16
SEED_BYTES = 32

_PERSON_SEED = b"kvasir.seed.v1"
_PERSON_ROOT = b"kvasir.root.v2"


def _with_length(text: str) -> bytes:
    """`text` behind its length, so that it cannot run into what follows, whatever either holds."""
    encoded = text.encode()
    return len(encoded).to_bytes(8, "little") + encoded


def prefix_seed(*, fleet_secret: str | None, model: str | None, revision: str | None) -> bytes:
    """The seed of a fleet's prefix hashes, 32 bytes.

    `model` and `revision` are what the engine's /v1/models says as `root` and `revision`. Without a
    fleet secret the seed is public, and only the hash itself makes collisions hard to find.
    """
    secret = blake2b((fleet_secret or "").encode(), person=_PERSON_SEED).digest()
    digest = blake2b(key=secret, digest_size=SEED_BYTES, person=_PERSON_SEED)
    for part in (model or "", revision or ""):
        digest.update(_with_length(part))
    return digest.digest()


def root_hash(seed: bytes = b"", *, cache_salt: str = "", lora: str = "") -> bytes:
    """The parent of a sequence's first block, 16 bytes."""
    extra = _with_length(cache_salt) + _with_length(lora)
    return blake2b(extra, key=seed, digest_size=HASH_BYTES, person=_PERSON_ROOT).digest()


def block_hash(parent: bytes, token_bytes: bytes) -> bytes:
    """The hash of one full block, 16 bytes; `token_bytes` are little-endian 32-bit token ids."""
    return blake2b(parent + token_bytes, digest_size=HASH_BYTES).digest()


_UNSEEDED = root_hash()


def chain_hashes(token_ids: Sequence[int], block_size: int, *, root: bytes = _UNSEEDED) -> bytes:
    """Hashes of every full block of `token_ids`, concatenated (16 bytes each)."""
    tokens = array("i", token_ids).tobytes()
    step = 4 * block_size
    parent = root
    out = bytearray()
    for start in range(0, len(tokens) - step + 1, step):
        parent = block_hash(parent, tokens[start : start + step])
        out += parent
    return bytes(out)
