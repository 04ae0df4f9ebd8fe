"""A key is revoked by whatever good file comes next, after any number of bad ones of any kind."""

import os
import random
from pathlib import Path

import pytest
import structlog

from kvasir_router.admission.keyring import Keyring
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key

MUTANTS = 10_000
KEYS = {name: hash_key(f"kv-{name}".encode()) for name in ("a", "b", "c")}
_WORDS = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"2026-11-31",
        b"!!python/object:os.system",
        b"&a [*a]",
        b"*x",
        b"<<: ",
    ),
    *(b"- ", b": ", b"{", b"[", b"]" * 50, b"'", b'"', b"\t", b"\n", b"---\n", b"%YAML 9\n"),
    *(b"1e999", b".inf", b"0x" + b"f" * 400, b"9" * 5000, b"null", b"keys:", b"\xed\xa0\x80"),
    *(b"? ", b"[" * 2000, b"\r", b"\xc2\x85", b"!!set {a}", b"!!binary x", b"12:30:99", b"#"),
)


def dump(*names: str) -> bytes:
    keys = (
        ApiKey(id=name, hash=KEYS[name], models=("m*",), requests_per_minute=9) for name in names
    )
    return dump_keys(KeyFile(keys=tuple(keys)))


def mutant(source: random.Random, text: bytes) -> bytes:
    """Return the text with one to four pieces cut, doubled, moved or replaced."""
    for _ in range(source.randint(1, 4)):
        start = source.randrange(len(text) + 1)
        end = min(len(text), start + source.choice((0, 1, 1, 4, 30)))
        piece = text[start:end]
        new = source.choice(
            (b"", piece * 2, source.choice(_WORDS), source.randbytes(2), text[end : end + 9])
        )
        text = text[:start] + new + text[end:]
    return text


def allowed(keyring: Keyring) -> set[str]:
    return {name for name in KEYS if keyring.find(f"Bearer kv-{name}".encode()) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_mutants_load_or_leave_the_last_good_keys(tmp_path: Path, seed: int) -> None:
    source, path, told = random.Random(seed), tmp_path / "keys.yaml", []
    good = [dump("a", "b"), dump("b"), dump("c", "a"), dump("a", "b", "c")]
    path.write_bytes(good[0])
    keyring = Keyring(path, 1, told.append)
    await keyring.load()
    loaded = 0
    with structlog.testing.capture_logs() as logs:
        for number in range(MUTANTS // 4):
            before = allowed(keyring)
            path.write_bytes(mutant(source, source.choice(good)))
            await keyring.read_again()
            loaded += told[-1]
            assert told[-1] or allowed(keyring) == before
            if number % 100 == 0:
                path.write_bytes(dump("b"))
                await keyring.read_again()
                assert allowed(keyring) == {"b"}
    assert 20 < loaded < MUTANTS // 4 * 0.9, "mutants are of both kinds"
    assert not [entry for entry in logs if entry.get("exc_info")], "each is refused by a sentence"


def _directory(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _long_name(path: Path) -> None:
    path.symlink_to("x" * 250)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


UNREADABLE = (os.mkfifo, _directory, _loop, _long_name, _device, _sparse)


@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
async def test_a_file_that_cannot_be_read_keeps_the_keys_and_the_next_one_counts(
    tmp_path: Path, make
) -> None:
    path, told = tmp_path / "keys.yaml", []
    path.write_bytes(dump("a"))
    keyring = Keyring(path, 1, told.append)
    await keyring.load()
    path.unlink()
    with structlog.testing.capture_logs() as logs:
        make(path)
        await keyring.read_again()
        await keyring.read_again()
    assert told == [True, False, False]
    assert allowed(keyring) == {"a"}
    [entry] = logs
    assert str(path) in entry["error"]
    path.rename(tmp_path / "gone")
    path.write_bytes(dump("b"))
    await keyring.read_again()
    assert allowed(keyring) == {"b"}
