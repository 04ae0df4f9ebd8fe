from __future__ import annotations

import pytest

from kvasir_engine.server.loaded_adapters import (
    MAX_ADAPTERS,
    NO_LORA,
    LoadBody,
    LoadedAdapters,
    UnloadBody,
)
from kvasir_engine.server.openai.api_error import ApiError


def load(adapters: LoadedAdapters, name: str, path: str = "/x") -> None:
    adapters.load(LoadBody(lora_name=name, lora_path=path))


def test_names_come_and_go() -> None:
    adapters = LoadedAdapters(("tiny",))
    load(adapters, "sql", "/sql")
    assert ("sql" in adapters, None in adapters, adapters.names) == (True, False, ["sql"])
    assert adapters.path("sql") == "/sql"
    adapters.unload(UnloadBody(lora_name="sql"))
    assert adapters.names == []
    load(adapters, "sql", "/other")
    assert adapters.path("sql") == "/other"


@pytest.mark.parametrize(
    ("name", "path", "param"),
    [
        ("", "/x", "lora_name"),
        ("x" * 254, "/x", "lora_name"),
        ("a\nb", "/x", "lora_name"),
        ("tiny", "/x", "lora_name"),
        ("there", "/x", "lora_name"),
        ("sql", "", "lora_path"),
        ("sql", "x" * 5000, "lora_path"),
    ],
)
def test_names_that_cannot_be_are_refused(name: str, path: str, param: str) -> None:
    adapters = LoadedAdapters(("tiny",))
    load(adapters, "there")
    with pytest.raises(ApiError) as refusal:
        load(adapters, name, path)
    assert (refusal.value.status, refusal.value.param) == (400, param)
    assert adapters.names == ["there"]


def test_there_are_so_many_at_most() -> None:
    adapters = LoadedAdapters(())
    for number in range(MAX_ADAPTERS):
        load(adapters, f"a{number}")
    with pytest.raises(ApiError, match="no more may be"):
        load(adapters, "one-more")


def test_one_that_is_not_loaded_is_404() -> None:
    with pytest.raises(ApiError) as refusal:
        LoadedAdapters(()).unload(UnloadBody(lora_name="sql"))
    assert refusal.value.status == 404


def test_an_engine_without_lora_says_so() -> None:
    adapters = LoadedAdapters((), NO_LORA)
    with pytest.raises(ApiError, match="without LoRA adapters") as refusal:
        load(adapters, "sql")
    assert refusal.value.status == 501
    with pytest.raises(ApiError, match="without LoRA adapters"):
        adapters.unload(UnloadBody(lora_name="sql"))
