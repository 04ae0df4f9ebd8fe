"""The page of engine types says what their table does."""

from __future__ import annotations

import sys
from pathlib import Path

from kvasir.resource.engines.engine_types import ENGINE_TYPES, REMEDIES

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import engine_type_docs


def test_the_tables_of_the_page_are_those_of_the_types() -> None:
    assert engine_type_docs.PAGE.read_text() == engine_type_docs.page(), "make engine-docs"


def test_every_type_and_every_setting_is_shown() -> None:
    table = engine_type_docs.table()
    assert all(f"| `{kind}` |" in table for kind in ENGINE_TYPES)
    assert len([line for line in table.splitlines() if line.startswith("| ")]) > len(REMEDIES)
