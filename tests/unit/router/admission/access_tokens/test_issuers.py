"""The file of issuers."""

import pytest
import yaml

from kvasir_router.admission.access_tokens.issuers import read_issuers
from kvasir_router.yaml_file import YamlFileError

ISSUER = {
    "name": "sso",
    "issuer": "https://login.example.com/realms/ml",
    "audiences": ["kvasir"],
    "tenants": [{"tenant": "team-a", "tokens_per_day": 10}, {"tenant": "*"}],
}


@pytest.fixture
def read(tmp_path):
    def read(*issuers: dict, **fields):
        path = tmp_path / "issuers.yaml"
        path.write_text(yaml.safe_dump({"issuers": list(issuers), **fields}))
        return read_issuers(path)

    return read


def test_the_least_that_an_issuer_says(read) -> None:
    [issuer] = read(ISSUER).issuers
    assert issuer.algorithms == ("RS256", "ES256")
    assert issuer.grant("team-a").tokens_per_day == 10
    assert issuer.grant("other").tokens_per_day is None


def test_a_tenant_that_is_not_listed_has_nothing_without_a_star(read) -> None:
    [issuer] = read({**ISSUER, "tenants": [{"tenant": "team-a"}]}).issuers
    assert issuer.grant("other") is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"algorithms": ["HS256"]}, "issuers[0].algorithms[0] must be 'RS256'"),
        ({"algorithms": ["none"]}, "issuers[0].algorithms[0] must be 'RS256'"),
        ({"algorithms": []}, "issuers[0].algorithms"),
        ({"audiences": []}, "issuers[0].audiences"),
        ({"tenants": []}, "issuers[0].tenants"),
        ({"tenants": [{"tenant": "a b"}]}, "issuers[0].tenants[0].tenant"),
        ({"tenants": [{"tenant": "a"}, {"tenant": "a"}]}, "listed twice"),
        (
            {"tenants": [{"tenant": "a", "values": ["g"]}, {"tenant": "b", "values": ["g"]}]},
            "the value 'g' means the tenants a and b; let it be one",
        ),
        (
            {"tenants": [{"tenant": "a"}, {"tenant": "b", "values": ["a"]}]},
            "the value 'a' means the tenants a and b",
        ),
        ({"tenants": [{"tenant": "*", "values": ["g"]}]}, "`*` is each tenant under its own name"),
        ({"tenants": [{"tenant": "a", "values": [""]}]}, "issuers[0].tenants[0].values[0]"),
        ({"permissions": [{"models": ["m"]}]}, "issuers[0].permissions[0].value"),
        ({"permissions": [{"value": "x", "models": ["a*b"]}]}, "'a*b' must be a model's name"),
        ({"permissions": [{"value": "x", "scopes": "m"}]}, "issuers[0].permissions[0].scopes"),
        ({"permissions": [{"value": "x\nSet-Cookie: a"}]}, "issuers[0].permissions[0].value"),
        ({"permissions": [{"value": "x", "claim": "a\rb"}]}, "issuers[0].permissions[0].claim"),
        ({"audiences": ["a\x7f"]}, "issuers[0].audiences[0]"),
        ({"required_claims": {"hd": 5}}, "issuers[0].required_claims"),
        ({"at_expiry": "stop"}, "issuers[0].at_expiry must be 'finish' or 'end'"),
        ({"issuer": "http://login.example.com"}, "use https, or set allow_http"),
        ({"jwks_url": "http://login.example.com/keys"}, "use https, or set allow_http"),
        ({"issuer": "login.example.com"}, "https://HOST[:PORT][/PATH]"),
        ({"issuer": "https://a:b@login.example.com"}, "https://HOST[:PORT][/PATH]"),
        ({"issuer": "https://login.example.com:0/"}, "https://HOST[:PORT][/PATH]"),
        ({"issuer": "https://login.example.com:x/"}, "https://HOST[:PORT][/PATH]"),
        ({"name": "A"}, "issuers[0].name"),
        ({"leeway_seconds": 301}, "issuers[0].leeway_seconds"),
        ({"audience": "kvasir"}, "did you mean audiences?"),
    ],
)
def test_what_is_wrong_is_one_sentence(read, fields: dict, said: str) -> None:
    with pytest.raises(YamlFileError) as error:
        read({**ISSUER, **fields})
    assert said in str(error.value)


def test_a_tenants_values_are_the_tenant(read) -> None:
    tenants = [{"tenant": "team-a", "values": ["/teams/a", "6b1c"]}, {"tenant": "*"}]
    [issuer] = read({**ISSUER, "tenants": tenants}).issuers
    named = {value: grant.tenant for value, grant in issuer.by_value.items()}
    assert named == dict.fromkeys(("team-a", "/teams/a", "6b1c"), "team-a")
    assert issuer.others.tenant == "*"


def test_an_issuer_is_listed_once_by_name_and_by_url(read) -> None:
    for other in ({"name": "b"}, {"issuer": "https://other.example.com"}):
        with pytest.raises(YamlFileError, match="two issuers have the same"):
            read(ISSUER, {**ISSUER, **other})
    assert (
        len(read(ISSUER, {**ISSUER, "name": "b", "issuer": "https://b.example.com"}).issuers) == 2
    )


def test_this_machine_and_what_is_allowed_do_without_tls(read) -> None:
    [local] = read({**ISSUER, "issuer": "http://localhost:8080"}).issuers
    assert local.may_fetch("http://[::1]/keys")
    assert not local.may_fetch("http://10.0.0.1/keys")
    [allowed] = read({**ISSUER, "issuer": "http://sso.auth.svc", "allow_http": True}).issuers
    assert allowed.may_fetch("http://10.0.0.1/keys")
