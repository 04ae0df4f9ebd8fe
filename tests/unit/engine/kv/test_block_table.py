from __future__ import annotations

from kvasir_engine.kv.block_table import BlockTables


def test_the_parent_is_the_last_hash_or_the_root() -> None:
    tables = BlockTables([[], []], b"root")
    assert tables.parent == b"root"
    tables.hashes.append(b"first")
    assert tables.parent == b"first"


def test_null_blocks_are_not_held() -> None:
    tables = BlockTables([[1, 2], [0, 5]], b"root")
    assert [tables.held(0), tables.held(1)] == [[1, 2], [5]]
    assert tables.windows_start == [0, 0]
