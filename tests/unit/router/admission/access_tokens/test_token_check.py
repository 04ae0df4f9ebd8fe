"""One token: what is taken, and why others are not."""

import base64
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import JSON_VALUES
from support.token_issuer import EC_KEY, ED_KEY, KEYS, RSA_KEY, public_jwk, sign

from kvasir_router.admission.access_tokens.issuers import Issuer
from kvasir_router.admission.access_tokens.signing_keys import SigningKeys
from kvasir_router.admission.access_tokens.token_check import Verified, check_token
from kvasir_router.admission.access_tokens.token_source import Reason, TokenError
from kvasir_router.admission.keyring import Rights

URL = "https://login.example.com"
FIELDS = {
    "name": "sso",
    "issuer": URL,
    "audiences": ["kvasir", "ml"],
    "algorithms": list(KEYS),
    "tenants": [{"tenant": "*"}],
}
JWKS = {"keys": [public_jwk(key, algorithm) for algorithm, key in KEYS.items()]}


def check(token: str | bytes, **fields) -> Verified:
    issuer = Issuer.model_validate({**FIELDS, **fields})
    keys = SigningKeys(JWKS, issuer.algorithms)

    def find(_: Issuer, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        key = keys.find(key_id, algorithm)
        if key is None:
            raise TokenError(Reason.KEY, "none")
        return key

    data = token if isinstance(token, bytes) else token.encode()
    return check_token(data, 8192, {URL: issuer}, find)


def why_not(token: str | bytes, **fields) -> Reason:
    with pytest.raises(TokenError) as error:
        check(token, **fields)
    return error.value.reason


def encoded(part) -> str:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_good_token_says_its_tenant_and_subject(algorithm) -> None:
    expires = int(time.time()) + 100
    found = check(sign(URL, key=KEYS[algorithm], algorithm=algorithm, exp=expires))
    assert (found.tenant, found.subject) == ("team-a", "someone")
    assert found.expires == expires + 30


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://evil.example"}, Reason.ISSUER),
        ({"iss": None}, Reason.ISSUER),
        ({"iss": URL + "/"}, Reason.ISSUER),
        ({"aud": "other"}, Reason.AUDIENCE),
        ({"aud": None}, Reason.AUDIENCE),
        ({"aud": []}, Reason.AUDIENCE),
        ({"aud": {"kvasir": 1}}, Reason.AUDIENCE),
        ({"exp": None}, Reason.MALFORMED),
        ({"exp": 1}, Reason.EXPIRED),
        ({"exp": "tomorrow"}, Reason.MALFORMED),
        ({"exp": float("inf")}, Reason.MALFORMED),
        ({"nbf": 4102444800}, Reason.NOT_YET),
        ({"iat": 4102444800}, Reason.NOT_YET),
        ({"iat": "x"}, Reason.MALFORMED),
        ({"tenant": None}, Reason.TENANT),
        ({"tenant": 5}, Reason.TENANT),
        ({"tenant": []}, Reason.TENANT),
        ({"tenant": ["team-a", 5]}, Reason.TENANT),
        ({"tenant": {"team-a": True}}, Reason.TENANT),
        ({"tenant": "a b"}, Reason.TENANT),
        ({"tenant": "a\n"}, Reason.TENANT),
        ({"tenant": "*"}, Reason.TENANT),
        ({"tenant": "a" * 65}, Reason.TENANT),
    ],
)
def test_each_claim_is_checked(claims: dict, reason: Reason) -> None:
    assert why_not(sign(URL, **claims)) is reason


def test_clocks_may_differ_by_the_leeway() -> None:
    now = int(time.time())
    assert check(sign(URL, exp=now - 20, nbf=now + 20, iat=now + 20))
    assert why_not(sign(URL, exp=now - 20), leeway_seconds=0) is Reason.EXPIRED


def test_one_of_several_audiences_is_enough() -> None:
    assert check(sign(URL, aud=["other", "ml"]))


def test_no_other_algorithm_is_taken() -> None:
    none = jwt.encode({"iss": URL}, None, "none", headers={"kid": "k1"})
    assert why_not(none) is Reason.ALGORITHM
    rsa = sign(URL, key=RSA_KEY, algorithm="RS256")
    assert why_not(rsa, algorithms=["ES256"]) is Reason.ALGORITHM
    assert why_not(sign(URL, key=RSA_KEY, algorithm="RS512")) is Reason.ALGORITHM


def test_a_public_key_is_no_secret() -> None:
    """The attack of RFC 8725, 2.1: signed by HMAC with the public key's text."""
    pem = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = encoded({"alg": "HS256", "kid": "k1"})
    claims = encoded({"iss": URL, "aud": "kvasir", "exp": 4102444800, "tenant": "team-a"})
    mac = encoded(hmac.digest(pem, f"{head}.{claims}".encode(), "sha256"))
    assert why_not(f"{head}.{claims}.{mac}") is Reason.ALGORITHM


def test_anothers_key_signs_nothing_here() -> None:
    assert why_not(sign(URL, key=ec.generate_private_key(ec.SECP256R1()))) is Reason.SIGNATURE
    assert why_not(sign(URL, headers={"kid": "k2"})) is Reason.KEY
    own = public_jwk(ec.generate_private_key(ec.SECP256R1()), "ES256")
    headers = {"jwk": own, "jku": "https://evil.example/keys"}
    assert check(sign(URL, headers=headers))  # by the issuer's key: the others are not looked at


@pytest.mark.parametrize(
    "headers",
    [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"kid": 5}, {"crit": ["x"], "x": 1}],
)
def test_a_header_that_must_be_understood_is_refused(headers) -> None:
    token = sign(URL)
    head = {"alg": "ES256", "kid": "k1", **headers}
    assert why_not(f"{encoded(head)}.{token.split('.', 1)[1]}") is Reason.MALFORMED


@pytest.mark.parametrize(
    "token",
    [b"", b"ey.ey.ey", b"..", b"a.b.c.d.e", b"\xff.\xff.\xff", b"eyJ9.e30.", b"ey"],
)
def test_what_is_no_jwt_is_malformed(token: bytes) -> None:
    assert why_not(token) is Reason.MALFORMED


def test_deep_and_long_tokens_cost_little() -> None:
    deep = encoded(b"[" * 5000 + b"]" * 5000)
    assert why_not(f"{encoded({'alg': 'ES256'})}.{deep}.AA") is Reason.TOO_LONG
    deep = encoded(b"[" * 2500 + b"]" * 2500)
    assert why_not(f"{encoded({'alg': 'ES256'})}.{deep}.AA") is Reason.MALFORMED


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("https://kvasir.dev/tenant", {"https://kvasir.dev/tenant": "x"}),
        ("/kubernetes.io/namespace", {"kubernetes.io": {"namespace": "x"}}),
        ("/a~1b/m~0n", {"a/b": {"m~n": "x"}}),
    ],
)
def test_the_tenant_is_where_the_issuer_puts_it(claim, claims) -> None:
    assert check(sign(URL, **claims), tenant_claim=claim).tenant == "x"
    with pytest.raises(TokenError, match=claim):
        check(sign(URL), tenant_claim=claim)


def test_what_a_token_gives_comes_with_it() -> None:
    fields = {
        "permissions": [{"value": "llm", "models": ["a*"]}],
        "required_claims": {"hd": "example.com"},
        "at_expiry": "end",
    }
    expires = int(time.time()) + 100
    token = sign(URL, scope="openid llm", hd="example.com", exp=expires)
    assert check(token, **fields).rights == Rights(("a*",), False, expires + 30)
    assert why_not(sign(URL, scope="llm"), **fields) is Reason.CLAIM
    assert why_not(sign(URL, hd="example.com"), **fields) is Reason.SCOPE
    forged = sign(URL, scope="llm", key=ec.generate_private_key(ec.SECP256R1()))
    assert why_not(forged, **fields) is Reason.SIGNATURE


def test_a_prefix_counts_in_a_names_length() -> None:
    assert check(sign(URL, tenant="a" * 60), tenant_prefix="sso/").tenant == "a" * 60
    assert why_not(sign(URL, tenant="a" * 61), tenant_prefix="sso/") is Reason.TENANT


GOOD = sign(URL, key=ED_KEY, algorithm="EdDSA", exp=4102444800)


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=0, max_size=3))
def test_no_other_bytes_are_as_good(at: int, new: bytes) -> None:
    """The last character of a part may hold bits that stand for nothing."""
    changed = GOOD.encode()[:at] + new + GOOD.encode()[at + 1 :]
    if changed.split(b".")[:2] != GOOD.encode().split(b".")[:2]:
        with pytest.raises(TokenError):
            check(changed)


@given(JSON_VALUES, JSON_VALUES, st.sampled_from(["", "AA", "x"]))
def test_whatever_a_token_holds_is_refused_in_a_sentence(head, claims, signature) -> None:
    with pytest.raises(TokenError):
        check(f"{encoded(head)}.{encoded(claims)}.{signature}")


@given(
    st.dictionaries(
        st.sampled_from(["exp", "nbf", "iat", "aud", "sub", "jti", "tenant"]),
        JSON_VALUES,
        min_size=1,
    )
)
def test_whatever_an_issuer_signs_is_taken_or_refused(claims) -> None:
    whole = {"iss": URL, "aud": "kvasir", "exp": 4102444800, "tenant": "a", **claims}
    token = jwt.api_jws.encode(json.dumps(whole).encode(), EC_KEY, "ES256", {"kid": "k1"})
    try:
        found = check(token)
    except TokenError:
        return
    assert isinstance(found.subject, str)
    assert whole["tenant"] in (found.tenant, [found.tenant])
