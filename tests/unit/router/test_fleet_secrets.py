from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvasir.secret_file import SecretError
from kvasir_router.fleet_secrets import FleetSecrets


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("old")
    return tmp_path / "secret"


async def test_the_first_line_is_sent_and_each_accepted(path) -> None:
    reported: list[bool] = []
    secrets = FleetSecrets("old", path, reported.append)
    path.write_text("new\nold")
    await secrets.load()
    assert secrets.lines == b"x-kvasir-fleet-secret: new\r\n"
    sent = ("new", "old", "ne", "", "new\nold", "s\u00e9cret", "\udcff")
    assert [it for it in sent if secrets.accepts(it)] == ["new", "old"]
    path.write_text("new")
    await secrets.load()
    assert not secrets.accepts("old")
    assert reported == [True, True]


@pytest.mark.parametrize("text", ["", "\n", "s\u00e9cret", "a\nhash-key:", "\0"])
async def test_what_cannot_be_used_leaves_the_last_good_secrets(path, text: str) -> None:
    reported: list[bool] = []
    secrets = FleetSecrets("old", path, reported.append)
    path.write_text(text)
    await secrets.load()
    assert reported == [False]
    assert secrets.accepts("old")
    assert secrets.lines == b"x-kvasir-fleet-secret: old\r\n"
    path.unlink()
    await secrets.load()
    assert reported == [False, False]
    assert secrets.accepts("old")


async def test_hashes_keep_the_key_of_the_start(path) -> None:
    secrets = FleetSecrets("old", path)
    for text, told in (("old\nnew\nhash-key:old", 0), ("new\nhash-key:old", 0), ("new", 1)):
        path.write_text(text)
        with capture_logs() as logs:
            await secrets.load()
        assert secrets.hash_key == "old"
        assert sum("hash key" in it["event"] for it in logs) == told
    assert FleetSecrets("new").hash_key == "new"
    assert FleetSecrets("new\nhash-key:old").hash_key == "old"


async def test_without_a_secret_nobody_is_known() -> None:
    secrets = FleetSecrets()
    assert (secrets.lines, secrets.hash_key, secrets.is_file) == (b"", "", False)
    assert not secrets.accepts("")
    with pytest.raises(SecretError):
        FleetSecrets("\n")
