"""Forms that are large, deep, endless or costly: refused, or as cheap as others."""

from __future__ import annotations

from typing import Any

import pytest
from support.hostile_forms import BOUNDED, REFUSED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(serve_module: Any) -> Any:
    return serve_module("builtin://kvasir-tiny", "--served-model-name", "tiny")


def ask(engine: Any, form: dict[str, Any]) -> Any:
    body = {"model": "tiny", "prompt": "Go:", "max_tokens": 8, "structured_outputs": form}
    return engine.client.post("/v1/completions", json=body)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_limit_allows_is_a_400(engine: Any, name: str) -> None:
    answer = ask(engine, REFUSED[name])
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "structured_outputs"


@pytest.mark.parametrize("name", BOUNDED)
def test_what_only_looks_large_is_answered(engine: Any, name: str) -> None:
    answer = ask(engine, BOUNDED[name])
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length")
