"""The model's name as each engine takes it."""

import msgspec
import pytest

from kvasir_router.discovery.specs import EngineKind
from kvasir_router.proxy.attempts.model_field import named_for, takes_the_same
from kvasir_router.wire.envelope import OUTLINED, decode_envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_scan import outline_of
from kvasir_router.wire.query import Query

OTHERS = [kind for kind in EngineKind if kind is not EngineKind.SGLANG]


def make_query(given: str, lora: str = "", *, outlined: bool = False) -> Query:
    request = Request()
    request.path = "/v1/completions"
    request.body = msgspec.json.encode({"prompt": "a", "model": given, "n": 1})
    if outlined:
        request.outline = outline_of(request.body, OUTLINED)
    return Query(request, decode_envelope(request.body), lora=lora)


@pytest.mark.parametrize("outlined", [False, True])
@pytest.mark.parametrize(
    ("model", "given", "lora", "name"),
    [
        ("m", "sql", "sql", "m:sql"),
        ("org/m:v1", "sql", "sql", "org/m:sql"),
        ("m", "sql:v2", "sql:v2", "m:sql:v2"),
        ("m", "m", "", "m"),
        ("m", "alias", "", "alias"),
        ("m", "m:sql", "", "m"),
        ("org/m:v1", "org/m:v1", "", "org/m:v1"),
    ],
)
def test_sglang_reads_an_adapter_behind_its_models_name(model, given, lora, name, outlined) -> None:
    query = make_query(given, lora, outlined=outlined)
    body, outline = named_for(EngineKind.SGLANG, query, query.request.body, model)
    assert msgspec.json.decode(body) == {"prompt": "a", "model": name, "n": 1}
    if outlined:
        assert msgspec.json.decode(outline.raw(body, "model")) == name
        assert outline.raw(body, "n") == b"1"


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("lora", ["", "sql:v1"])
def test_others_know_adapters_by_their_own_names(engine, lora) -> None:
    query = make_query(lora or "m:latest", lora)
    body, _ = named_for(engine, query, query.request.body, "m")
    assert body is query.request.body


def test_bodies_differ_by_engine_for_adapters_alone() -> None:
    sglang, vllm, kvasir = EngineKind.SGLANG, EngineKind.VLLM, EngineKind.KVASIR
    assert takes_the_same(make_query("m"), sglang, vllm)
    assert takes_the_same(make_query("sql", "sql"), kvasir, vllm)
    assert takes_the_same(make_query("sql", "sql"), sglang, sglang)
    assert not takes_the_same(make_query("sql", "sql"), sglang, vllm)
    assert not takes_the_same(make_query("m:a"), vllm, sglang)
