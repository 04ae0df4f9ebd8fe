"""Salts that keep tenants' prompts apart."""

import json

import pytest

from kvasir_router.admission.tenant_salt import TenantSalt
from kvasir_router.wire.envelope import OUTLINED, decode_envelope, read_outline
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies import body_scan
from kvasir_router.wire.long_bodies.body_scan import BodyError, outline_of
from kvasir_router.wire.query import Query

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "a" * 2000}]}


def salted(
    body: bytes, tenant: str, *, path: str = CHAT, secret: str = "s", long: bool = False
) -> Query:
    request = Request()
    request.path, request.body = path, body
    if long:
        assert body_scan.build()
        request.outline = outline_of(body, OUTLINED)
        envelope = read_outline(body, request.outline)
    else:
        envelope = decode_envelope(body)
    TenantSalt(secret).add(request, envelope, tenant)
    return Query(request, envelope)


@pytest.mark.parametrize("long", [False, True])
def test_tenants_have_salts_of_their_own(long: bool) -> None:
    body = json.dumps(BODY, indent=1).encode() + b" \n"
    one, same, other = (salted(body, tenant, long=long) for tenant in ("a", "a", "b"))
    sent = json.loads(one.request.body)
    assert sent == {**BODY, "cache_salt": sent["cache_salt"]}
    assert len(sent["cache_salt"]) == 32
    assert same.request.body == one.request.body
    assert set(one.chain).isdisjoint(other.chain)
    assert list(one.chain) == list(salted(body, "a", long=not long).chain)
    secret = salted(body, "a", secret="another")
    assert json.loads(secret.request.body)["cache_salt"] != sent["cache_salt"]


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    "given", ['"cache_salt":"x",', '"cache_salt":null,"cache_salt":"x",', '"cache_salt":"x",' * 2]
)
def test_a_client_s_salt_is_a_part_of_it_and_never_the_whole(given: str, long: bool) -> None:
    body = json.dumps(BODY).replace("{", "{" + given, 1).encode()
    sent = json.loads(salted(body, "a", long=long).request.body)
    assert sent["cache_salt"] not in ("x", None)
    plain = json.loads(salted(json.dumps(BODY).encode(), "a").request.body)
    assert sent["cache_salt"] != plain["cache_salt"]
    forged = json.dumps({**BODY, "cache_salt": plain["cache_salt"]}).encode()
    other = json.loads(salted(forged, "b", long=long).request.body)
    assert other["cache_salt"] != plain["cache_salt"]


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("given", [7, ["a"], "s" * 2000, {"a": "b" * 9000}])
def test_what_is_no_salt_is_refused(given: object, long: bool) -> None:
    with pytest.raises(BodyError, match="`cache_salt` must be a string") as caught:
        salted(json.dumps({**BODY, "cache_salt": given}).encode(), "a", long=long)
    assert caught.value.param == "cache_salt"


def test_only_prompts_that_take_one_are_salted() -> None:
    body = b'{"model":"m","input":"x"}'
    assert salted(body, "a", path="/v1/embeddings").request.body == body
    completion = salted(b'{"model":"m","prompt":"x"}', "a", path="/v1/completions")
    assert "cache_salt" in json.loads(completion.request.body)
    message = salted(json.dumps(BODY).encode(), "a", path="/v1/messages")
    assert "cache_salt" in json.loads(message.request.body)


def test_an_edit_after_it_finds_its_place() -> None:
    assert body_scan.build()
    body = json.dumps({**BODY, "stream_options": {"a": 1}}).encode()
    request = salted(body, "a", long=True).request
    assert request.outline is not None
    edited = json.loads(request.outline.replaced(request.body, "stream_options", b"{}"))
    assert edited == {**json.loads(request.body), "stream_options": {}}


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("character", ["s", "é", "\N{GRINNING FACE}"])
def test_a_salt_has_1024_characters_however_they_are_written(character: str, long: bool) -> None:
    body = json.dumps({**BODY, "cache_salt": character * 1024}).encode()
    assert len(json.loads(salted(body, "a", long=long).request.body)["cache_salt"]) == 32
    body = json.dumps({**BODY, "cache_salt": character * 1025}).encode()
    with pytest.raises(BodyError, match="of up to 1024 characters"):
        salted(body, "a", long=long)
