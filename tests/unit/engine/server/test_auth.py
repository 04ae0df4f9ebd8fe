from __future__ import annotations

from pathlib import Path

import pytest

from kvasir.secret_file import SecretError
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_engine.server.auth import ApiKeyFile, Keyring, parse_api_keys


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
    keyring = Keyring(["hidden-key"], FleetSecretFile("hidden-secret"), ApiKeyFile("hidden"))
    assert "hidden" not in repr(vars(keyring))


def admitted(keyring: Keyring, *keys: str) -> list[str]:
    return [it for it in keys if keyring.admits({b"authorization": f"Bearer {it}".encode()})]


def test_keys_of_a_file_count_while_they_are_there(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n\n  new \r\nold\n")
    file = ApiKeyFile(path=path)
    keyring = Keyring(["stays"], FleetSecretFile(), file)
    assert admitted(keyring, "stays", "old", "new", "", "x") == ["stays", "old", "new"]
    path.write_text("new")
    assert file.look()
    assert admitted(keyring, "stays", "old", "new") == ["stays", "new"]
    path.write_text("\n")
    assert not file.look()
    assert admitted(keyring, "stays", "old", "new", "") == ["stays", "new"]


def test_a_file_that_never_held_a_key_admits_nobody(tmp_path: Path) -> None:
    assert not Keyring([], FleetSecretFile(), ApiKeyFile(path=tmp_path / "keys")).admits({})


@pytest.mark.parametrize(
    ("text", "why"), [("", "holds no key"), (" \n\t\n", "holds no key"), ("s\u00e9", "ASCII")]
)
def test_a_text_without_keys_says_why_and_nothing_of_it(text: str, why: str) -> None:
    with pytest.raises(SecretError, match=why) as refused:
        parse_api_keys(text)
    assert "s\u00e9" not in str(refused.value)
    assert "hidden" not in repr(parse_api_keys("hidden"))
