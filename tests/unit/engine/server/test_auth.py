from __future__ import annotations

from pathlib import Path

import pytest

from kvasir.wire.fleet_secret_file import FleetSecretFile
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
    assert Keyring(["one", "two"], FleetSecretFile()).admits({b"authorization": sent}) is admitted


@pytest.mark.parametrize(("sent", "admitted"), [(b"one", True), (b" two ", True), (b"x", False)])
def test_a_key_comes_in_a_header_of_its_own(sent: bytes, admitted: bool) -> None:
    keyring = Keyring(["one", "two"], FleetSecretFile())
    assert keyring.admits({b"x-api-key": sent}) is admitted
    assert not keyring.admits({b"authorization": b"Bearer x", b"x-api-key": sent})


def test_without_keys_everybody_is_admitted() -> None:
    assert Keyring([], FleetSecretFile("secret")).admits({})


def test_only_the_configured_secret_proves_a_router() -> None:
    header = b"x-kvasir-fleet-secret"
    keyring = Keyring(["one"], FleetSecretFile("secret"))
    assert keyring.is_fleet({header: b"secret"})
    assert not keyring.is_fleet({header: b"secre"})
    assert not keyring.is_fleet({header: "sécret".encode()})
    assert not keyring.is_fleet({})
    assert not Keyring([], FleetSecretFile()).is_fleet({header: b""})


def test_each_line_of_the_file_proves_a_router_while_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old\nnew\nhash-key:key")
    secret = FleetSecretFile(path=tmp_path / "secret")
    keyring = Keyring([], secret)

    def accepted() -> list[str]:
        sent = ("old", "new", "key", "hash-key:key", "")
        return [it for it in sent if keyring.is_fleet({b"x-kvasir-fleet-secret": it.encode()})]

    assert accepted() == ["old", "new"]
    (tmp_path / "secret").write_text("new")
    assert secret.look()
    assert accepted() == ["new"]
    (tmp_path / "secret").write_text("")
    assert not secret.look()
    assert accepted() == ["new"]
    assert keyring.has_fleet


def test_no_secret_is_kept_in_the_clear() -> None:
    keyring = Keyring(["hidden-key"], FleetSecretFile("hidden-secret"))
    assert "hidden" not in repr(vars(keyring))
