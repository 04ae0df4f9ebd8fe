"""An engine whose device is a checking model of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

for name in ("plan_model", "heard", "engine_model"):
    pytest.register_assert_rewrite(f"{__package__}.{name}")

from .engine_model import EngineModel, Shape  # noqa: E402


@pytest.fixture(scope="session")
def engine_model() -> Callable[..., EngineModel]:
    """engine_model(rows=4, budget=32, ...): an EngineModel of that Shape."""

    def make(**fields: Any) -> EngineModel:
        return EngineModel(Shape(**fields))

    return make
