import pytest
from kvasir.fleet_secret import curve_key_pair, same_secret


@pytest.mark.parametrize(
    ("given", "same"),
    [("tail", True), (b"tail", True), ("Tail", False), ("", False), (None, False), ("täil", False)],
)
def test_only_the_secret_itself_is_the_same(given: str | bytes | None, same: bool) -> None:
    assert same_secret("tail", given) is same


def test_key_pairs_are_the_same_for_both_sides_and_differ_by_role_and_secret() -> None:
    pairs = {curve_key_pair(secret, role) for secret in ("a", "b") for role in ("server", "client")}
    assert len({pair.public for pair in pairs}) == 4
    assert curve_key_pair("a", "server") in pairs
