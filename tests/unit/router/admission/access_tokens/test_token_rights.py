"""What tokens of the usual issuers give."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.admission.access_tokens.issuers import Issuer
from kvasir_router.admission.access_tokens.token_rights import (
    check_required,
    rights_of,
    tenant_of,
)
from kvasir_router.admission.access_tokens.token_source import Reason, TokenError
from kvasir_router.admission.keyring import Rights

GROUP = "6b1c9d0e-7d55-4c39-9a52-0a5b1f4c7e11"

KEYCLOAK = {
    "groups": ["/teams/a", "/offline"],
    "realm_access": {"roles": ["offline_access", "llm-user"]},
    "resource_access": {"kvasir": {"roles": ["llm-admin"]}},
    "scope": "openid profile llm",
    "email_verified": True,
}
ENTRA = {"groups": [GROUP], "roles": ["Llm.Use"], "scp": "Chat.Use User.Read", "tid": "t1"}
OKTA = {"groups": ["Everyone", "team-a"], "scp": ["openid", "llm"]}
AUTH0 = {"https://example.com/org": "team-a", "scope": "llm", "permissions": ["use:llm"]}
GOOGLE = {"email": "ci@p.iam.gserviceaccount.com", "hd": "example.com", "email_verified": True}
KUBERNETES = {
    "sub": "system:serviceaccount:research:notebook",
    "kubernetes.io": {"namespace": "research", "serviceaccount": {"name": "notebook"}},
}


def issuer(*tenants: dict, **fields) -> Issuer:
    return Issuer.model_validate(
        {
            "name": "sso",
            "issuer": "https://login.example.com",
            "audiences": ["kvasir"],
            "tenants": list(tenants) or [{"tenant": "*"}],
            **fields,
        }
    )


TEAM_A = {"tenant": "team-a", "values": ["/teams/a", GROUP]}


@pytest.mark.parametrize(
    ("claims", "claim", "tenant"),
    [
        (KEYCLOAK, "groups", "team-a"),
        (ENTRA, "groups", "team-a"),
        (OKTA, "groups", "team-a"),
        (AUTH0, "https://example.com/org", "team-a"),
        (GOOGLE, "email", "ci@p.iam.gserviceaccount.com"),
        (GOOGLE, "hd", "example.com"),
        (KUBERNETES, "/kubernetes.io/namespace", "research"),
        (KUBERNETES, "/kubernetes.io/serviceaccount/name", "notebook"),
    ],
)
def test_the_tenant_of_the_usual_issuers(claims, claim, tenant) -> None:
    assert tenant_of(claims, issuer(TEAM_A, {"tenant": "*"}, tenant_claim=claim)) == tenant


def why_no_tenant(claims: dict, *tenants: dict, claim: str = "groups") -> str:
    with pytest.raises(TokenError) as error:
        tenant_of(claims, issuer(*tenants, tenant_claim=claim))
    assert error.value.reason is Reason.TENANT
    return str(error.value)


def test_a_list_that_names_several_tenants_is_refused_with_their_names() -> None:
    said = why_no_tenant({"groups": ["b", "x", "/teams/a"]}, TEAM_A, {"tenant": "b"})
    assert said == (
        "The access token's claim `groups` names 2 tenants (`b`, `team-a`) and must name one: get "
        "a token for one of them."
    )
    same = {"groups": ["/teams/a", GROUP, "team-a"]}
    assert tenant_of(same, issuer(TEAM_A, tenant_claim="groups")) == "team-a"


def test_of_a_list_without_a_listed_tenant_only_a_single_value_is_one() -> None:
    anybody = issuer(TEAM_A, {"tenant": "*"}, tenant_claim="groups")
    assert tenant_of({"groups": ["b"]}, anybody) == "b"
    assert tenant_of({"groups": ["b", "b"]}, anybody) == "b"
    assert "None of the 2 values" in why_no_tenant({"groups": ["b", "c"]}, TEAM_A, {"tenant": "*"})
    assert "None of the 2 values" in why_no_tenant({"groups": ["b", "c"]}, TEAM_A)


@pytest.mark.parametrize("groups", [None, [], [5], ["a", None], {}, 5, "a b", ["a b"], ["/b"]])
def test_what_is_no_name_of_a_tenant(groups) -> None:
    said = why_no_tenant({"groups": groups}, {"tenant": "*"})
    assert said == "The access token's claim `groups` must be the name of a tenant."


def test_groups_that_were_left_out_are_told_with_a_remedy() -> None:
    claims = {"_claim_names": {"groups": "src1"}}
    assert "left out by its issuer for its size" in why_no_tenant(claims, TEAM_A)


@given(st.lists(st.sampled_from(["a", "b", "c", "x", "y"])))
def test_a_list_is_one_tenant_or_refused(groups) -> None:
    entry = issuer({"tenant": "a", "values": ["c"]}, {"tenant": "b"}, tenant_claim="groups")
    listed = {{"c": "a"}.get(each, each) for each in groups} & {"a", "b"}
    try:
        found = tenant_of({"groups": groups}, entry)
    except TokenError:
        assert len(listed) != 1
    else:
        assert listed == {found} or (not listed and set(groups) == {found})


@pytest.mark.parametrize(
    ("claims", "claim", "value"),
    [
        (KEYCLOAK, "scope", "llm"),
        (KEYCLOAK, "realm_access.roles", "llm-user"),
        (KEYCLOAK, "resource_access.kvasir.roles", "llm-admin"),
        (ENTRA, "scp", "Chat.Use"),
        (ENTRA, "roles", "Llm.Use"),
        (ENTRA, "groups", GROUP),
        (OKTA, "scp", "llm"),
        (AUTH0, "permissions", "use:llm"),
        (KUBERNETES, "sub", "system:serviceaccount:research:notebook"),
    ],
)
def test_scopes_roles_and_groups_permit_models(claims, claim, value) -> None:
    wanted = {"claim": claim, "value": value, "models": ["a", "b*"]}
    assert rights_of(claims, issuer(permissions=[wanted])) == Rights(("a", "b*"))
    with pytest.raises(TokenError) as error:
        rights_of(claims, issuer(permissions=[{**wanted, "value": value + "x"}]))
    assert error.value.reason is Reason.SCOPE
    assert f"`{value}x"[:40] in str(error.value)


def test_permissions_add_up() -> None:
    entry = issuer(
        permissions=[
            {"value": "small", "models": ["a", "b"]},
            {"value": "large", "models": ["b", "c"]},
            {"value": "boss", "models": [], "admin": True},
        ]
    )
    assert rights_of({"scope": "small large"}, entry) == Rights(("a", "b", "c"))
    assert rights_of({"scope": "boss small"}, entry) == Rights(("a", "b"), admin=True)
    assert rights_of({"scope": "boss"}, entry) == Rights((), admin=True)


def test_a_refusal_names_a_few_of_what_is_missing() -> None:
    entry = issuer(permissions=[{"value": f"s{at}"} for at in range(20)])
    with pytest.raises(TokenError) as error:
        rights_of({}, entry)
    assert "`s0` in `scope`, `s1` in `scope`" in str(error.value)
    assert str(error.value).endswith("`s7` in `scope` or others.")


def test_without_permissions_a_token_may_what_its_tenant_may() -> None:
    assert rights_of({"scope": "x"}, issuer()) == Rights(None, False, inf)


def test_what_a_token_has_begun_ends_with_it_where_the_issuer_says_so() -> None:
    assert rights_of({"exp": 1000.7}, issuer(at_expiry="end", leeway_seconds=5)).ends == 1005


def test_required_claims() -> None:
    entry = issuer(required_claims={"hd": "example.com", "email_verified": True})
    check_required(GOOGLE, entry)
    for other, said in (
        ({"hd": "evil.example"}, "claim `hd` must be `example.com`"),
        ({"email_verified": False}, "claim `email_verified` must be `true`"),
        ({"email_verified": None}, "claim `email_verified` must be `true`"),
    ):
        with pytest.raises(TokenError, match=said) as error:
            check_required({**GOOGLE, **other}, entry)
        assert error.value.reason is Reason.CLAIM
