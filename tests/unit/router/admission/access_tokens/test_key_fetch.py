"""Keys from a server: discovery, limits, trust."""

import asyncio

import pytest
from aiohttp import web
from support.token_issuer import TokenIssuer

from kvasir_router.admission.access_tokens import key_fetch
from kvasir_router.admission.access_tokens.issuers import Issuer
from kvasir_router.admission.access_tokens.key_fetch import KeyFetchError, fetch_keys


def issuer_of(server: TokenIssuer, **fields) -> Issuer:
    return Issuer.model_validate(server.entry(**fields))


async def test_keys_are_found_by_discovery_or_at_a_given_url(token_issuer) -> None:
    assert (await fetch_keys(issuer_of(token_issuer))).find("k1", "ES256")
    assert token_issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    given = issuer_of(token_issuer, jwks_url=f"{token_issuer.url}/keys")
    assert (await fetch_keys(given)).find("k1", "ES256")
    assert token_issuer.asked[2:] == ["/keys"]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"issuer": "https://evil.example"}, "is of another issuer, 'https://evil.example'"),
        ({"issuer": 5}, "is of another issuer"),
        ({"jwks_uri": None}, "has no `jwks_uri`"),
        ({"jwks_uri": "file:///etc/passwd"}, "has no `jwks_uri`"),
        ({"jwks_uri": "http://10.0.0.1/keys"}, "without TLS"),
    ],
)
async def test_discovery_must_be_the_issuers_and_safe(token_issuer, members, said) -> None:
    token_issuer.discovery = members
    with pytest.raises(KeyFetchError) as error:
        await fetch_keys(issuer_of(token_issuer))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: web.Response(status=302, headers={"Location": "/keys"}), "answers 302"),
        (lambda: web.Response(status=500), "answers 500"),
        (lambda: web.Response(text="{"), "answers no JSON"),
        (lambda: web.Response(text="[" * 100_000), "answers no JSON"),
        (lambda: web.Response(text=" " * (key_fetch.MAX_BYTES + 1)), "more than 524288 bytes"),
        (lambda: web.Response(text='{"keys": []}'), "no public key"),
    ],
    ids=["redirect", "status", "json", "deep", "large", "empty"],
)
async def test_whatever_is_answered_is_one_sentence(token_issuer, answer, said) -> None:
    token_issuer.answer = answer
    with pytest.raises(KeyFetchError) as error:
        await fetch_keys(issuer_of(token_issuer))
    assert said in str(error.value)


async def test_a_server_that_is_not_there_or_says_nothing(token_issuer, monkeypatch) -> None:
    gone = issuer_of(token_issuer, jwks_url="http://127.0.0.1:1/keys")
    with pytest.raises(KeyFetchError, match=r"127\.0\.0\.1"):
        await fetch_keys(gone)

    async def silent(*args) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(key_fetch, "_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(key_fetch, "_fetch", silent)
    with pytest.raises(KeyFetchError, match=r"no answer within 0\.01 s"):
        await fetch_keys(gone)


async def test_a_bearer_goes_to_the_issuers_own_server_alone(token_issuer, tmp_path) -> None:
    bearer = tmp_path / "token"
    bearer.write_text("secret\n")
    await fetch_keys(issuer_of(token_issuer, bearer_file=str(bearer)))
    other = TokenIssuer()
    runner = await other.start()
    token_issuer.discovery = {"jwks_uri": f"{other.url}/keys"}
    await fetch_keys(issuer_of(token_issuer, bearer_file=str(bearer)))
    await runner.cleanup()
    assert token_issuer.bearers == ["Bearer secret"] * 3
    assert other.bearers == [None]


@pytest.mark.parametrize("content", [None, b"\xff", b"a\nb"])
async def test_a_file_that_is_missing_or_none_is_told(token_issuer, tmp_path, content) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFetchError, match="token"):
        await fetch_keys(issuer_of(token_issuer, bearer_file=str(path)))
    with pytest.raises(KeyFetchError):
        await fetch_keys(issuer_of(token_issuer, ca_file=str(tmp_path / "none.pem")))
    assert token_issuer.asked == []
