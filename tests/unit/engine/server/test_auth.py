from __future__ import annotations

import pytest

from kvasir_engine.server.auth import Keyring


@pytest.mark.parametrize(
    ("sent", "admitted"),
    [
        (b"Bearer one", True),
        (b"bearer  two ", True),
        (b"Bearer thre\xff", False),
        (b"Basic one", False),
        (b"Bearer", False),
        (b"", False),
    ],
)
def test_a_key_comes_as_a_bearer_token(sent: bytes, admitted: bool) -> None:
    assert Keyring(["one", "two"], None).admits({b"authorization": sent}) is admitted


def test_without_keys_everybody_is_admitted() -> None:
    assert Keyring([], "secret").admits({})


def test_only_the_configured_secret_proves_a_router() -> None:
    header = b"x-kvasir-fleet-secret"
    keyring = Keyring(["one"], "sécret")
    assert keyring.is_fleet({header: "sécret".encode()})
    assert not keyring.is_fleet({header: b"secret"})
    assert not keyring.is_fleet({})
    assert not Keyring([], None).is_fleet({header: b""})


def test_no_secret_is_kept_in_the_clear() -> None:
    keyring = Keyring(["hidden-key"], "hidden-secret")
    assert "hidden" not in repr(vars(keyring))
