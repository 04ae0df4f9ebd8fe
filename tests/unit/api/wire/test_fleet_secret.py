from kvasir.wire.fleet_secret import curve_key_pair


def test_key_pairs_are_the_same_for_both_sides_and_differ_by_role_and_secret() -> None:
    pairs = {curve_key_pair(secret, role) for secret in ("a", "b") for role in ("server", "client")}
    assert len({pair.public for pair in pairs}) == 4
    assert curve_key_pair("a", "server") in pairs
