"""The core on a model directory, and transformers as the judge of what it produced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engines.correctness_runs import Engine, Job, Judge


@pytest.fixture(scope="session")
def judge(hf_model_dir: Callable[[str], Path]) -> Iterator[Callable[[str], Judge]]:
    """judge(name): transformers on the small model `name`."""
    made: dict[str, Judge] = {}

    def get(name: str) -> Judge:
        if name not in made:
            made[name] = Judge(hf_model_dir(name))
        return made[name]

    yield get
    for each in made.values():
        each.settle()


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    """make_engine(model_dir, **settings): an Engine, closed afterwards."""
    made: list[Engine] = []

    def make(model_dir: Path, **settings: Any) -> Engine:
        made.append(Engine(model_dir, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.core.built_runner.runner.close()


@pytest.fixture(scope="session")
def job() -> type[Job]:
    """The Job class (tests are no package to import from)."""
    return Job
