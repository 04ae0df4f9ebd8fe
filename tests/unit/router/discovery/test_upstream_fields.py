"""Fields that make a replica of a discovery file a server of others."""

from pathlib import Path

import pytest
from support.certificates import self_signed

from kvasir_router.discovery.specs import Upstream
from kvasir_router.discovery.upstream_fields import MAX_KEY, UpstreamError, UpstreamFields


def fields(url: str = "https://a.example/v1", **more) -> UpstreamFields:
    return UpstreamFields.model_validate({"url": url, **more})


@pytest.mark.parametrize(
    ("given", "is_upstream"),
    [
        (fields("http://a:8000"), False),
        (fields("http://a:8000/"), False),
        (fields("http://a:8000/v1"), True),
        (fields("http://a:8000", model="m"), True),
        (fields("http://a:8000", key_header="authorization"), True),
        (fields("http://a:8000", health_path="/h"), True),
    ],
)
def test_what_makes_one(given: UpstreamFields, is_upstream: bool) -> None:
    assert given.is_upstream is is_upstream
    assert (given.upstream() is not None) is is_upstream


def test_key_and_authorities_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, _ = self_signed(tmp_path, "authority")
    key = tmp_path / "key"
    key.write_text(" sk-file\n")
    given = fields(key_file=str(key), ca_file=str(cert), server_name="b.example")
    upstream = given.upstream()
    assert upstream == Upstream(
        key="sk-file", authorities=cert.read_text(), server_name="b.example"
    )
    assert given.files() == (key, cert)
    monkeypatch.setenv("PROVIDER", "sk-env")
    of_environment = fields(key_env="PROVIDER").upstream()
    assert of_environment is not None
    assert of_environment.key == "sk-env"


@pytest.mark.parametrize("text", ["", " \n", "a b", "a\nb", "ä", "x" * (MAX_KEY + 1)])
def test_a_key_that_no_header_can_carry_is_refused_without_a_word_of_it(
    tmp_path: Path, text: str
) -> None:
    key = tmp_path / "key"
    key.write_text(text)
    with pytest.raises(UpstreamError) as refusal:
        fields(key_file=str(key)).upstream()
    assert str(key) in str(refusal.value)
    assert not text.strip() or text.strip() not in str(refusal.value).replace(str(key), "")


def test_authorities_that_are_none_are_refused(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("nothing")
    with pytest.raises(UpstreamError, match=r"ca\.pem: no certificates"):
        fields(ca_file=str(ca)).upstream()
