from __future__ import annotations

import pytest

from kvasir.resource.lora.lora_adapter import LoraAdapter


@pytest.mark.parametrize(
    ("uri", "downloaded", "directory"),
    [
        ("file:///adapters/sql", False, "/adapters/sql"),
        ("pvc://claim/adapters/sql", False, "/models/adapters/sql"),
        ("pvc://claim", False, "/models"),
        ("hf://org/sql@main", True, "/models/hf-org-sql-main-"),
        ("org/sql", True, "/models/hf-org-sql-"),
        ("s3://bucket/sql", True, "/models/s3-bucket-sql-"),
    ],
)
def test_where_an_engine_finds_it(uri: str, downloaded: bool, directory: str) -> None:
    adapter = LoraAdapter(name="sql", uri=uri)
    assert adapter.downloaded is downloaded
    if downloaded:
        assert adapter.directory.startswith(directory)
    else:
        assert adapter.directory == directory
