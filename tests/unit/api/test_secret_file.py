import os
import pickle
import threading
from pathlib import Path

import pytest

from kvasir.secret_file import SecretError, printable_lines
from kvasir.wire.fleet_secret import parse_fleet_secret
from kvasir.wire.fleet_secret_file import FleetSecretFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("a\n")
    return tmp_path / "secret"


def test_what_the_file_holds_now_counts(path: Path) -> None:
    file = FleetSecretFile("older", path)
    assert file.now == parse_fleet_secret("a")
    assert not file.look()
    path.write_text("a\nb\n")
    assert file.look()
    assert file.now.accepted == ("a", "b")
    assert file.text == "a\nb\n"


def test_another_process_gets_one_of_its_own(path: Path) -> None:
    file = FleetSecretFile(path=path)
    file.follow()
    copy = pickle.loads(pickle.dumps(file))
    file.stop()
    assert copy.now == file.now
    path.write_text("b\n")
    assert copy.look()
    assert copy.now.sent == "b"


def test_a_mounted_secret_is_another_folder_after_a_change(tmp_path: Path) -> None:
    """As kubelet does it: names are links through ..data, which is moved at once."""
    for number, text in enumerate(("a", "b"), 1):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "secret").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "secret").symlink_to("..data/secret")
    file = FleetSecretFile(path=tmp_path / "secret")
    assert file.now.sent == "a"
    (tmp_path / "..next").symlink_to("..2")
    (tmp_path / "..next").rename(tmp_path / "..data")
    assert file.look()
    assert file.now.sent == "b"


def _gone(path: Path) -> None:
    path.unlink()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _holds(content: bytes):
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (_gone, "cannot be read"),
        (_fifo, "no regular file"),
        (_folder, "no regular file"),
        (_loop, "cannot be read"),
        (_holds(b""), "holds no secret"),
        (_holds(b"hidden\xff"), "not printable ASCII"),
        (_holds(b"hidden\0"), "not printable ASCII"),
        (_holds(b"hidden" * 10_000), "larger than"),
    ],
)
def test_what_cannot_be_used_leaves_the_last_good_secrets(
    path: Path, harm, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = FleetSecretFile(path=path)
    harm(path)
    assert not file.look()
    assert not file.look()
    assert file.now.accepted == ("a",)
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert why in record.message
    assert str(path) in record.message
    assert "hidden" not in record.message
    with pytest.raises(SecretError, match=why):
        FleetSecretFile.read(path)
    with pytest.raises(SecretError, match=why):
        FleetSecretFile.read_text(path)


def test_a_good_file_after_a_bad_one_is_taken(path: Path) -> None:
    file = FleetSecretFile(path=path)
    path.write_text("")
    file.look()
    path.write_text("b")
    assert file.look()
    assert file.now.accepted == ("b",)


def test_a_bad_file_leaves_what_the_process_was_started_with(path: Path) -> None:
    path.write_text("")
    assert FleetSecretFile("a\nb", path).now.accepted == ("a", "b")


def test_without_a_file_nothing_is_followed() -> None:
    file = FleetSecretFile("a")
    file.follow()
    assert not file.look()
    assert file.now.accepted == ("a",)
    assert FleetSecretFile().now.accepted == ()
    with pytest.raises(SecretError):
        FleetSecretFile("\n")


def test_a_change_is_told_while_it_is_followed(path: Path) -> None:
    file, changed = FleetSecretFile(path=path), threading.Event()
    file.follow(changed.set)
    path.write_text("b\na")
    assert changed.wait(30)
    assert file.now.accepted == ("b", "a")
    file.stop()


def test_a_listener_that_raises_ends_nothing(path: Path) -> None:
    told: list[str] = []
    twice = threading.Event()

    def listen() -> None:
        told.append(file.now.sent)
        path.write_text("c")
        if len(told) == 2:
            twice.set()
        raise RuntimeError("a defect of the listener")

    file = FleetSecretFile(path=path)
    file.follow(listen)
    path.write_text("b")
    assert twice.wait(30)
    assert told == ["b", "c"]
    file.stop()


def test_each_look_is_reported(path: Path) -> None:
    reported: list[bool] = []
    file = FleetSecretFile(path=path, reported=reported.append)
    path.write_text("")
    file.look()
    path.write_text("a")
    file.look()
    assert reported == [True, False, True]
    FleetSecretFile("a", reported=reported.append)
    assert len(reported) == 3


def test_lines_have_no_blanks_around_them() -> None:
    assert printable_lines("\ta \r\n\n b c\n \n") == ["a", "b c"]
    with pytest.raises(SecretError, match="not printable ASCII"):
        printable_lines("a\x0bb")
