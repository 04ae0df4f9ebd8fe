import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.secret_file import SecretError
from kvasir.wire.fleet_secret import (
    FleetSecret,
    curve_key_pair,
    parse_fleet_secret,
)


def test_key_pairs_are_the_same_for_both_sides_and_differ_by_role_and_secret() -> None:
    pairs = {curve_key_pair(secret, role) for secret in ("a", "b") for role in ("server", "client")}
    assert len({pair.public for pair in pairs}) == 4
    assert curve_key_pair("a", "server") in pairs


@pytest.mark.parametrize(
    ("text", "accepted", "hash_key"),
    [
        ("a", ("a",), "a"),
        ("a\n", ("a",), "a"),
        (" a \r\n\n b\n", ("a", "b"), "a"),
        ("a\nb\na\n", ("a", "b"), "a"),
        ("b\na\nhash-key:a\n", ("b", "a"), "a"),
        ("hash-key: k \nb", ("b",), "k"),
        ("with a blank", ("with a blank",), "with a blank"),
    ],
)
def test_one_secret_a_line_the_first_is_sent(
    text: str, accepted: tuple[str, ...], hash_key: str
) -> None:
    found = parse_fleet_secret(text)
    assert (found.accepted, found.sent, found.hash_key) == (accepted, accepted[0], hash_key)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no secret"),
        (" \n\n", "no secret"),
        ("hash-key:k", "no secret"),
        ("a\nhash-key:k\nhash-key:l", "once"),
        ("a\nhash-key:", "not empty"),
        ("hidden\x00", "printable ASCII"),
        ("hidden\u2028b", "printable ASCII"),
        ("s\u00e9cret", "printable ASCII"),
        ("\n".join(map(str, range(9))), "9 secrets"),
    ],
)
def test_other_texts_are_refused_without_a_word_of_them(text: str, why: str) -> None:
    with pytest.raises(SecretError, match=why) as refused:
        parse_fleet_secret(text)
    assert "hidden" not in str(refused.value)


@given(st.text(max_size=40))
def test_whatever_is_accepted_fits_into_a_header(text: str) -> None:
    try:
        found = parse_fleet_secret(text)
    except SecretError:
        return
    assert found.hash_key
    for secret in found.accepted:
        assert secret
        assert secret == secret.strip()
        assert secret.isascii()
        assert secret.isprintable()


def test_without_a_secret_none_is_sent() -> None:
    assert (FleetSecret().sent, FleetSecret().accepted) == ("", ())


def test_no_repr_shows_a_secret() -> None:
    assert "hidden" not in repr(parse_fleet_secret("hidden\nhash-key:hidden"))
