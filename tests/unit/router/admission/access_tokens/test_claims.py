"""Claims where issuers put them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import JSON_VALUES

from kvasir_router.admission.access_tokens.claims import find_claim, has_value, is_left_out


@pytest.mark.parametrize(
    ("name", "claims", "found"),
    [
        ("groups", {"groups": ["a"]}, ["a"]),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, ["a"]),
        ("resource_access.kvasir.roles", {"resource_access": {"kvasir": {"roles": [1]}}}, [1]),
        ("https://example.com/roles", {"https://example.com/roles": "a"}, "a"),
        ("kubernetes.io", {"kubernetes.io": {"namespace": "a"}}, {"namespace": "a"}),
        ("/kubernetes.io/serviceaccount/name", {"kubernetes.io": {"serviceaccount": 1}}, None),
        ("/a.b/c", {"a.b": {"c": 1}, "a": {"b": {"c": 2}}}, 1),
        ("a.b", {"a.b": 1, "a": {"b": 2}}, 1),  # a claim of the name goes before its dots
        ("a.b", {"a": ["b"]}, None),
        ("a.0", {"a": ["b"]}, None),
        (".", {}, None),
        ("/", {"": 1}, 1),
        ("a", {}, None),
    ],
)
def test_a_claim_is_found_by_its_name_its_dots_or_a_pointer(name, claims, found) -> None:
    assert find_claim(claims, name) == found


@pytest.mark.parametrize(
    ("claim", "value", "has"),
    [
        ("openid llm:chat", "llm:chat", True),
        ("openid llm:chat", "llm", False),
        ("openid llm:chat", "openid llm:chat", True),
        (["openid", "llm"], "llm", True),
        (["openid llm"], "llm", False),  # an element is one value, whatever is in it
        ("llm", "", False),
        ({"llm": True}, "llm", False),
        (None, "llm", False),
        (5, "5", False),
        (True, True, True),
        (False, False, True),
        (1, True, False),
        ("true", True, False),
        (["true"], True, False),
        (None, False, False),
    ],
)
def test_words_lists_and_truths(claim, value, has) -> None:
    assert has_value(claim, value) is has


def test_a_claim_may_be_left_out_for_its_size() -> None:
    """As Entra ID does with more than 200 groups."""
    claims = {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {}}}
    assert is_left_out(claims, "groups")
    assert not is_left_out(claims, "roles")
    assert not is_left_out({"_claim_names": ["groups"]}, "groups")


@given(
    st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3),
    st.text(min_size=1, max_size=8),
    st.one_of(st.text(max_size=3), st.booleans()),
)
def test_whatever_claims_hold_can_be_looked_into(claims, name, value) -> None:
    assert has_value(find_claim(claims, name), value) in (True, False)
