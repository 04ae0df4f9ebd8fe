"""`kvasir keys`, run as a user runs it."""

import stat

import pytest
from typer.testing import CliRunner

from kvasir_router.admission.keys import hash_key, read_keys
from kvasir_router.admission.keys_command import app


@pytest.fixture
def keys(tmp_path):
    """Run `kvasir keys ... -f FILE`."""
    path = tmp_path / "keys.yaml"

    def run(*arguments: str):
        return CliRunner().invoke(app, [*arguments, "-f", str(path)])

    run.path = path  # type: ignore[attr-defined]
    return run


def test_create_prints_the_key_once_and_keeps_its_hash(keys) -> None:
    result = keys("create", "--tenant", "team", "--model", "llama", "--model", "qwen*")
    assert result.exit_code == 0
    key = result.stdout.strip()
    [entry] = read_keys(keys.path).keys
    assert entry.hash == hash_key(key.encode())
    assert (entry.tenant, entry.models) == ("team", ("llama", "qwen*"))
    assert key not in keys.path.read_text()


def test_the_file_is_its_owners_alone(keys) -> None:
    keys("create")
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600


def test_create_adds_to_what_is_there(keys) -> None:
    for name in ("a", "b", "c"):
        assert keys("create", "--id", name).exit_code == 0
    assert [entry.id for entry in read_keys(keys.path).keys] == ["a", "b", "c"]


def test_limits_and_class_are_kept(keys) -> None:
    keys(
        *("create", "--requests-per-minute", "60", "--tokens-per-minute", "5000"),
        *("--tokens-per-day", "1e6", "--priority", "bulk", "--weight", "2.5"),
    )
    [entry] = read_keys(keys.path).keys
    assert entry.allowance.tokens_per_day == 1e6
    assert (entry.priority.name, entry.weight) == ("BULK", 2.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--priority", "urgent"), ("--priority", "'urgent'", "bulk")),
        (("--model", "a*b"), ("--model", "a*b")),
        (("--tokens-per-day", "-1"), ("--tokens-per-day", "greater")),
        (("--id", "a b"), ("--id", "a b")),
        (("--weight", "0"), ("--weight",)),
    ],
)
def test_what_is_wrong_is_one_sentence_and_status_2(keys, arguments, words) -> None:
    result = keys("create", *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words)
    assert result.stderr.count("\n") == 1
    assert not keys.path.exists()


def test_an_id_is_taken_once(keys) -> None:
    keys("create", "--id", "a")
    result = keys("create", "--id", "a")
    assert result.exit_code == 2
    assert "already" in result.stderr


def test_a_file_that_is_no_key_file_is_left_alone(keys) -> None:
    keys.path.write_text("models: []\n")
    for command in (("create",), ("list",), ("revoke", "a")):
        result = keys(*command)
        assert result.exit_code == 2
        assert "models" in result.stderr
    assert keys.path.read_text() == "models: []\n"


def test_a_directory_that_is_not_there(keys, tmp_path) -> None:
    result = CliRunner().invoke(app, ["create", "-f", str(tmp_path / "none" / "keys.yaml")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_list_shows_what_each_may_do_and_no_hash(keys) -> None:
    keys("create", "--id", "first", "--tokens-per-day", "5000000", "--priority", "system")
    keys("create", "--id", "second", "--tenant", "t2", "--model", "m")
    result = keys("list")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["ID", "TENANT", "MODELS"]
    assert lines[1].split() == ["first", "default", "*", "-", "-", "5000000", "system", "1"]
    assert lines[2].split() == ["second", "t2", "m", "-", "-", "-", "default", "1"]
    for entry in read_keys(keys.path).keys:
        assert entry.hash not in result.stdout


def test_revoke_takes_one_out(keys) -> None:
    keys("create", "--id", "a")
    keys("create", "--id", "b")
    assert keys("revoke", "a").exit_code == 0
    assert [entry.id for entry in read_keys(keys.path).keys] == ["b"]
    result = keys("revoke", "a")
    assert result.exit_code == 2
    assert "'a'" in result.stderr


def test_help_teaches(keys) -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    for word in ("create", "list", "revoke", "kvasir router", "hash", "Bearer"):
        assert word in text
