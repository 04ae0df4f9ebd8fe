"""Keys of a JWKS: which are of use."""

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import JSON_VALUES
from support.token_issuer import EC_KEY, ED_KEY, RSA_KEY, public_jwk

from kvasir_router.admission.access_tokens.signing_keys import MAX_KEYS, SigningKeys

EVERY = ("RS256", "PS512", "ES256", "ES384", "EdDSA")
MEMBERS = ("kty", "kid", "crv", "x", "y", "n", "e", "use", "alg")
GOOD = public_jwk(EC_KEY, "ES256")


def keys(*entries, algorithms=EVERY) -> SigningKeys:
    return SigningKeys({"keys": list(entries)}, algorithms)


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA_KEY, "RS256"), (EC_KEY, "ES256"), (ED_KEY, "EdDSA")]
)
def test_a_key_is_for_its_own_algorithm(key, algorithm) -> None:
    found = keys(public_jwk(key, algorithm))
    assert found.find("k1", algorithm) is not None
    assert found.find("k2", algorithm) is None
    assert all(found.find("k1", other) is None for other in EVERY if other != algorithm)


def test_an_rsa_key_that_names_no_algorithm_is_for_all_of_its_kind() -> None:
    entry = public_jwk(RSA_KEY, "RS256")
    del entry["alg"]
    found = keys(entry)
    assert found.find("k1", "RS256")
    assert found.find("k1", "PS512")
    assert found.find("k1", "ES256") is None


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "kid": "k1", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I"},
        {**GOOD, "use": "enc"},
        {**GOOD, "key_ops": ["sign"]},
        {**GOOD, "key_ops": "verify"},
        {**GOOD, "kid": 7},
        {**GOOD, "kid": "k" * 257},
        {**GOOD, "x": "AAAA"},
        {**GOOD, "x": 5},
        {**GOOD, "crv": "P-384"},
        {**GOOD, "alg": "RS256"},
        jwt.get_algorithm_by_name("ES256").to_jwk(EC_KEY, as_dict=True),
        public_jwk(rsa.generate_private_key(65537, 1024), "RS256"),
        public_jwk(ec.generate_private_key(ec.SECP384R1()), "ES384", alg="ES256"),
        "key",
    ],
    ids=[
        *("secret", "encryption", "operations", "no list", "number", "long", "short", "no text"),
        *("curve", "algorithm", "private", "weak", "other curve", "no object"),
    ],
)
def test_what_is_not_for_signatures_here_is_left_out(entry) -> None:
    assert keys(entry, {**GOOD, "kid": "good"}).find("k1", "ES256") is None
    with pytest.raises(ValueError, match="no public key"):
        keys(entry)


def test_without_a_key_id_there_must_be_no_choice() -> None:
    assert keys(GOOD).find(None, "ES256") is not None
    other = public_jwk(ec.generate_private_key(ec.SECP256R1()), "ES256", kid="k2")
    assert keys(GOOD, other).find(None, "ES256") is None


def test_the_first_key_of_an_id_counts() -> None:
    other = public_jwk(ec.generate_private_key(ec.SECP256R1()), "ES256")
    assert keys(GOOD, other).find("k1", "ES256").key == EC_KEY.public_key()


@pytest.mark.parametrize("document", [None, [], {}, {"keys": {}}, {"keys": "x"}])
def test_what_is_no_jwks_is_told(document) -> None:
    with pytest.raises(ValueError, match="no JWKS"):
        SigningKeys(document, EVERY)


def test_keys_are_bounded() -> None:
    many = [{**GOOD, "kid": f"k{at}"} for at in range(MAX_KEYS)]
    assert len(keys(*many, algorithms=("ES256",))) == MAX_KEYS
    with pytest.raises(ValueError, match="more than 64"):
        keys(*many, GOOD)


@given(
    st.lists(
        st.one_of(
            JSON_VALUES,
            st.fixed_dictionaries(
                {},
                optional=dict.fromkeys(
                    ("kty", "kid", "crv", "x", "y", "n", "e", "use", "alg"), JSON_VALUES
                ),
            ),
        ),
        max_size=4,
    )
)
def test_whatever_is_listed_the_good_key_is_found(entries) -> None:
    others = [{**each, "kid": "x"} if isinstance(each, dict) else each for each in entries]
    assert keys(*others, GOOD).find("k1", "ES256") is not None
