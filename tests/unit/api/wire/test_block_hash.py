from __future__ import annotations

import subprocess
import sys
from hashlib import blake2b

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvasir.wire.block_hash import (
    HASH_BYTES,
    SEED_BYTES,
    block_hash,
    chain_hashes,
    prefix_seed,
    root_hash,
)

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=70)


@given(tokens, st.sampled_from([1, 4, 16]))
def test_the_chain_is_one_block_hash_after_the_other(ids: list[int], size: int) -> None:
    parent, expected = root_hash(), b""
    for start in range(0, len(ids) - size + 1, size):
        block = b"".join(i.to_bytes(4, "little") for i in ids[start : start + size])
        parent = block_hash(parent, block)
        expected += parent
    assert chain_hashes(ids, size) == expected
    assert len(expected) == HASH_BYTES * (len(ids) // size)


@given(tokens, st.integers(0, 69))
def test_a_change_changes_its_block_and_all_after_it(ids: list[int], at: int) -> None:
    if at >= len(ids):
        return
    changed = [*ids[:at], ids[at] ^ 1, *ids[at + 1 :]]
    before, after = chain_hashes(ids, 4), chain_hashes(changed, 4)
    for block in range(len(ids) // 4):
        where = slice(block * HASH_BYTES, (block + 1) * HASH_BYTES)
        assert (before[where] == after[where]) is (block < at // 4)


def test_extra_keys_change_every_block() -> None:
    roots = [
        root_hash(),
        root_hash(cache_salt="a"),
        root_hash(cache_salt="b"),
        root_hash(lora="a"),
        root_hash(cache_salt="a", lora="a"),
        # No byte in a salt or a name may make the two read like another pair.
        root_hash(cache_salt="a\0a"),
        root_hash(cache_salt="a\0", lora="a"),
        root_hash(cache_salt="a", lora="\0a"),
        root_hash(cache_salt="aa"),
        root_hash(lora="aa"),
    ]
    chains = {chain_hashes(range(8), 4, root=root)[-HASH_BYTES:] for root in roots}
    assert len(chains) == len(roots)


def test_the_hash_is_blake2b_of_parent_and_tokens() -> None:
    content = b"\x01\0\0\0\x02\0\0\0"
    expected = blake2b(root_hash() + content, digest_size=HASH_BYTES).digest()
    assert block_hash(root_hash(), content) == chain_hashes([1, 2], 2) == expected


def test_the_seed_is_the_same_for_the_same_fleet_and_model_alone() -> None:
    same: dict[str, str | None] = {"fleet_secret": "s", "model": "org/m", "revision": "1"}
    others: list[dict[str, str | None]] = [
        {"fleet_secret": "t"},
        {"fleet_secret": None},
        {"model": "org/n"},
        {"revision": "2"},
        {"model": "org/m1", "revision": ""},
    ]
    seeds = [prefix_seed(**{**same, **other}) for other in ({}, *others)]
    assert seeds[0] == prefix_seed(**same)
    assert {len(seed) for seed in seeds} == {SEED_BYTES}
    chains = {chain_hashes(range(8), 4, root=root_hash(seed)) for seed in seeds}
    assert len(chains) == len(seeds)
    assert root_hash(seeds[0], cache_salt="a") != root_hash(seeds[1], cache_salt="a")


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=64, max_size=64))
def test_blocks_that_collide_under_xxh3_after_any_parent_do_not_here(
    parent: bytes, content: bytes
) -> None:
    """Why a secret root alone is not enough: with these two words in place, the products that they
    are in are zero, and two high bits cancel whatever the parent is."""
    one = bytearray(content)
    one[32:40], one[48:56] = bytes.fromhex("b8084674f743248e"), bytes.fromhex("ded46de9839097db")
    other = bytearray(one)
    other[47] ^= 0x80
    other[63] ^= 0x80
    xxh3 = xxhash.xxh3_128_digest
    assert xxh3(parent + bytes(one)) == xxh3(parent + bytes(other))
    assert block_hash(parent, bytes(one)) != block_hash(parent, bytes(other))


def test_other_processes_compute_the_same() -> None:
    code = "from kvasir.wire.block_hash import *; print(chain_hashes(range(32), 16).hex())"
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert printed.strip() == chain_hashes(range(32), 16).hex()


def test_a_token_id_beyond_32_bits_is_an_error() -> None:
    with pytest.raises(OverflowError):
        chain_hashes([2**31], 1)
