"""The engine contract as a router reads it."""

from __future__ import annotations

import pytest
from support.engines.router_side import RouterSide


@pytest.fixture
def router() -> type[RouterSide]:
    """Read the engine contract."""
    return RouterSide
