"""The key file: what it may say, and what it never holds."""

import hashlib
import json

import pytest
import yaml

from kvasir_router.admission import keys
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key, make_key, read_keys
from kvasir_router.admission.limits import Allowance
from kvasir_router.admission.ticket import Priority
from kvasir_router.yaml_file import YamlFileError

HASH = "a" * 64


def read(tmp_path, content):
    path = tmp_path / "keys.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return read_keys(path).keys


def test_keys_are_long_random_and_hashed() -> None:
    made = {make_key() for _ in range(100)}
    assert len(made) == 100
    assert all(len(key) == 46 and key.startswith("kv-") for key in made)
    assert len({hash_key(key.encode()) for key in made}) == 100
    assert hash_key(b"kv-x") == hash_key(b"kv-x") != hash_key(b"kv-y")


def test_what_is_left_out_has_a_default(tmp_path) -> None:
    [key] = read(tmp_path, {"keys": [{"id": "a", "hash": HASH}]})
    assert key.allowance == Allowance()
    assert (key.tenant, key.models, key.priority, key.weight) == (
        "default",
        ("*",),
        Priority.DEFAULT,
        1.0,
    )


def test_a_whole_entry_is_written_and_read(tmp_path) -> None:
    key = ApiKey(
        id="a",
        hash=HASH,
        tenant="team",
        models=("llama", "qwen*"),
        requests_per_minute=60,
        tokens_per_minute=1e6,
        tokens_per_day=5e7,
        priority="interactive",
        weight=2.5,
    )
    text = dump_keys(KeyFile(keys=(key,))).decode()
    assert read(tmp_path, text) == (key,)
    assert "priority: interactive" in text


def test_a_key_may_stand_for_its_hash_and_is_never_written(tmp_path) -> None:
    found = read(tmp_path, {"keys": [{"id": "a", "key": "kv-0123456789abcdef"}]})
    assert found[0].hash == hash_key(b"kv-0123456789abcdef")
    assert b"0123456789abcdef" not in dump_keys(KeyFile(keys=found))


def test_json_is_read_too(tmp_path) -> None:
    content = {"keys": [{"id": "a", "hash": HASH, "models": ["m"]}]}
    [key] = read(tmp_path, json.dumps(content))
    assert key.models == ("m",)


def test_no_keys_is_a_valid_file(tmp_path) -> None:
    assert read(tmp_path, "keys: []") == ()


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"id": "a"}, "keys[0].hash is missing"),
        ({"id": "a", "hash": "secret"}, "keys[0].hash must match"),
        ({"id": "a b", "hash": HASH}, "keys[0].id must match"),
        ({"id": "a", "hash": HASH, "tenant": ""}, "tenant"),
        ({"id": "a", "hash": HASH, "models": ["a*b"]}, "models"),
        ({"id": "a", "hash": HASH, "models": [""]}, "models"),
        (
            {"id": "a", "hash": HASH, "tokens_per_day": 0},
            "keys[0].tokens_per_day must be greater than 0, not 0",
        ),
        ({"id": "a", "hash": HASH, "tokens_per_minute": float("nan")}, "tokens_per_minute"),
        ({"id": "a", "hash": HASH, "requests_per_minute": -1}, "greater than 0, not -1"),
        ({"id": "a", "hash": HASH, "priority": "urgent"}, "system, interactive, default, bulk"),
        ({"id": "a", "hash": HASH, "priority": 0}, "system, interactive, default, bulk"),
        ({"id": "a", "hash": HASH, "weight": 0}, "weight"),
        ({"id": "a", "hash": HASH, "models": "m"}, "keys[0].models must be a list"),
        ("kv-0123456789abcdef", "keys[0] must be a mapping"),
        ({"id": "a", "key": "eyJhbGciOi.eyJpc3MiOi.c2ln"}, "has the form of an access token"),
        (
            {"id": "a", "hash": HASH, "rpm": 5},
            "keys[0].rpm is not a known field; known are id, hash",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, entry, word) -> None:
    with pytest.raises(YamlFileError) as refusal:
        read(tmp_path, {"keys": [entry]})
    assert word in str(refusal.value)
    assert "keys.yaml" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("other", [{"id": "a", "hash": "b" * 64}, {"id": "b", "hash": HASH}])
def test_ids_and_keys_are_unique(tmp_path, other) -> None:
    with pytest.raises(YamlFileError, match="twice"):
        read(tmp_path, {"keys": [{"id": "a", "hash": HASH}, other]})


@pytest.mark.parametrize("content", ["", "[]", "keys", "keys: [", "keys: 5", "x: 1"])
def test_what_is_no_key_file_is_refused_in_one_line(tmp_path, content) -> None:
    with pytest.raises(YamlFileError) as refusal:
        read(tmp_path, content)
    assert "\n" not in str(refusal.value)


def test_a_missing_or_huge_file_is_refused(tmp_path, monkeypatch) -> None:
    with pytest.raises(YamlFileError, match="cannot read key file"):
        read_keys(tmp_path / "none.yaml")
    monkeypatch.setattr("kvasir_router.admission.keys.MAX_FILE_BYTES", 10)
    with pytest.raises(YamlFileError, match="larger than 10 bytes"):
        read(tmp_path, "keys: [] # and more")


@pytest.mark.parametrize(
    "content",
    [
        "keys:\n  - id: a\n   hash: kv-secret\n",
        "keys: [kv-secret]",
        "keys: [{id: a, hash: kv-secret}]",
        "keys: [{id: a, key: kv-secret}]",
        "keys: [{id: kv-secret!, hash: x}]",
        "keys: kv-secret",
        "kv-secret",
    ],
)
def test_a_refusal_quotes_no_secret(tmp_path, content) -> None:
    with pytest.raises(YamlFileError) as refusal:
        read(tmp_path, content)
    assert "kv-secret" not in str(refusal.value)


def test_a_hash_of_digits_is_not_quoted_either(tmp_path) -> None:
    with pytest.raises(YamlFileError) as refusal:
        read(tmp_path, "keys: [{id: a, hash: 8675309}]")
    assert "8675309" not in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "least", "most", "refused"),
    [
        ("weight", 0.01, 1000, [0.0099, 1000.1]),
        ("requests_per_minute", 1e-9, 1e15, [0, 1.1e15]),
        ("tokens_per_day", 0.5, 1e15, [0, 1.1e15]),
        ("id", "a", "a" * 64, ["", "a" * 65]),
        ("tenant", "0", "9" * 64, ["", "-a", "a" * 65]),
        ("key", "k" * 16, "k" * 256, ["k" * 15, "k" * 257, "k" * 15 + " "]),
        ("hash", "0" * 64, "f" * 64, ["a" * 63, "a" * 65, "A" * 64, "g" * 64]),
    ],
)
def test_bounds_of_an_entry(tmp_path, field, least, most, refused) -> None:
    def entry(value):
        base = {"id": "a", "hash": HASH, field: value}
        if field == "key":
            del base["hash"]
        return {"keys": [base]}

    for value in (least, most):
        assert len(read(tmp_path, entry(value))) == 1
    for value in refused:
        with pytest.raises(YamlFileError, match=field):
            read(tmp_path, entry(value))


def test_an_entry_has_the_key_or_its_hash(tmp_path) -> None:
    both = {"id": "a", "key": "kv-0123456789abcdef", "hash": HASH}
    with pytest.raises(YamlFileError, match="not both"):
        read(tmp_path, {"keys": [both]})


@pytest.mark.parametrize("model", ["*", "m", "m*", "org/m-1.2:x"])
def test_names_of_models_and_their_beginnings(tmp_path, model) -> None:
    [key] = read(tmp_path, {"keys": [{"id": "a", "hash": HASH, "models": [model]}]})
    assert key.models == (model,)
    for wrong in ("m m", "m\x7f", "**", "*m"):
        with pytest.raises(YamlFileError, match="models"):
            read(tmp_path, {"keys": [{"id": "a", "hash": HASH, "models": [wrong]}]})


def test_an_entry_is_written_without_what_it_does_not_say() -> None:
    assert ApiKey(id="a", hash=HASH).dump() == {"id": "a", "hash": HASH}
    bulk = ApiKey(id="a", hash=HASH, priority="bulk", models=("m",))
    assert bulk.dump() == {"id": "a", "hash": HASH, "models": ["m"], "priority": "bulk"}


def test_a_file_holds_50_000_keys_and_16_mib() -> None:
    assert keys.MAX_KEYS == 50_000
    assert keys.MAX_FILE_BYTES == 16_777_216


def test_a_hash_is_blake2b_of_32_bytes_with_its_own_person() -> None:
    made = hashlib.blake2b(b"kv-x", digest_size=32, person=b"kvasir.api-key")
    assert hash_key(b"kv-x") == made.hexdigest()
