"""Keys in use: lookup, permissions, reload."""

import pytest

from kvasir_router.admission.keyring import Holder, Keyring, Rights
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.admission.limits import Allowance, KeyLimits, Limit
from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.target import Target
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.yaml_file import YamlFileError


def entry(name: str, **options) -> ApiKey:
    return ApiKey(id=name, hash=hash_key(f"kv-{name}".encode()), **options)


@pytest.fixture
def write(tmp_path):
    """Move a new key file into place, as Kubernetes and `kvasir keys` do."""
    path = tmp_path / "keys.yaml"

    def write(*keys: ApiKey, text: bytes | None = None):
        new = tmp_path / "new"
        new.write_bytes(text if text is not None else dump_keys(KeyFile(keys=keys)))
        new.replace(path)
        return path

    return write


@pytest.fixture
def make_keyring(write):
    async def make(*keys: ApiKey, routers: int = 1) -> Keyring:
        keyring = Keyring(write(*keys), routers, lambda good: None)
        await keyring.load()
        return keyring

    return make


async def test_a_key_is_found_by_its_header(make_keyring) -> None:
    keyring = await make_keyring(entry("a"), entry("b"))
    for header in (b"Bearer kv-b", b"bearer  kv-b", b"BEARER kv-b "):
        assert keyring.find(header).key.id == "b"


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer ", b"kv-a", b"Basic kv-a", b"Bearer kv-c", b"Bearer kv-a kv-a"],
)
async def test_anything_else_is_nobody(make_keyring, header) -> None:
    assert (await make_keyring(entry("a"))).find(header) is None


async def test_the_hash_itself_is_no_key(make_keyring) -> None:
    keyring = await make_keyring(entry("a"))
    assert keyring.find(b"Bearer " + hash_key(b"kv-a").encode()) is None


@pytest.mark.parametrize(
    ("patterns", "name", "adapter", "allowed"),
    [
        (("*",), "m", "", True),
        (("m",), "m", "", True),
        (("m",), "alias", "", True),
        (("alias",), "alias", "", True),
        (("alias",), "m", "", False),
        (("m",), "m-sql", "m-sql", False),
        (("m*",), "m-sql", "m-sql", True),
        (("m",), "mm", "", False),
        (("n", "x*"), "m", "", False),
        ((), "m", "", False),
    ],
)
def test_models_by_exact_name_or_beginning(patterns, name, adapter, allowed) -> None:
    model = Model(ModelSpec("m", aliases=("alias",)), RoundRobin(), 0)
    holder = Holder(entry("a", models=patterns), KeyLimits(Allowance(), 0.0), "a")
    assert holder.may_use(name, Target(model, adapter)) is allowed


@pytest.mark.parametrize(
    ("tenants", "tokens", "name", "allowed"),
    [
        (("*",), ("m",), "m", True),
        (("*",), ("n",), "m", False),
        (("n",), ("*",), "m", False),
        (("m*",), ("*m",), "m", False),  # a star is at the end
        (("m",), ("alias",), "alias", True),  # one has the alias, the other the model
        (("alias",), ("m",), "alias", True),
        (("alias",), ("m",), "m", False),
        (("n",), ("alias",), "alias", False),
        (("*",), (), "m", False),
    ],
)
def test_a_token_may_what_its_tenant_and_its_permissions_allow(
    tenants, tokens, name, allowed
) -> None:
    model = Model(ModelSpec("m", aliases=("alias",)), RoundRobin(), 0)
    key, limits = entry("a", models=tenants), KeyLimits(Allowance(), 0.0)
    holder = Holder(key, limits, "a", rights=Rights(tokens))
    assert holder.may_use(name, Target(model)) is allowed
    assert holder.uses_nothing is (tokens == ())


async def test_an_edited_file_is_in_use_at_the_next_look(make_keyring, write) -> None:
    keyring = await make_keyring(entry("a"))
    await keyring.read_again()
    write(entry("b", tenant="t"))
    await keyring.read_again()
    assert keyring.find(b"Bearer kv-a") is None
    assert keyring.find(b"Bearer kv-b").key.tenant == "t"


async def test_a_header_that_has_come_is_nobody_s_when_its_key_is_gone(make_keyring, write) -> None:
    keyring = await make_keyring(entry("a"))
    first = keyring.find(b"Bearer kv-a")
    assert keyring.find(b"Bearer kv-a") is first
    write(entry("b"))
    await keyring.read_again()
    assert keyring.find(b"Bearer kv-a") is None


async def test_headers_that_are_remembered_are_bounded(make_keyring) -> None:
    keyring = await make_keyring(entry("a"))
    for at in range(5000):
        spaced = f"{at:b}".replace("0", " ").replace("1", "\t").encode()
        assert keyring.find(b"Bearer " + spaced + b"kv-a")
    assert keyring.find(b"Bearer" + b" " * 300 + b"kv-a")
    assert len(keyring._known) == 4096
    assert max(map(len, keyring._known)) <= 256


async def test_a_bad_or_missing_file_keeps_the_last_good_one_and_says_so(write) -> None:
    told = []
    path = write(entry("a"))
    keyring = Keyring(path, 1, told.append)
    await keyring.load()
    write(text=b"keys: [")
    await keyring.read_again()
    path.unlink()
    await keyring.read_again()
    assert keyring.find(b"Bearer kv-a") is not None
    assert told == [True, False, False]
    write(entry("b"))
    await keyring.read_again()
    assert told[-1]
    assert len(keyring) == 1


DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    "text",
    [b"keys: [{id: 2026-11-31}]", b"keys: " + DEEP, b"keys: &a [*a]", b"keys: [\xff]", b"\x00"],
    ids=["date", "deep", "circle", "utf-8", "control"],
)
async def test_whatever_is_wrong_with_a_file_the_next_one_is_read(write, text) -> None:
    told = []
    keyring = Keyring(write(entry("a"), entry("b")), 1, told.append)
    await keyring.load()
    write(text=text)
    await keyring.read_again()
    assert len(keyring) == 2
    write(entry("b"))
    await keyring.read_again()
    assert keyring.find(b"Bearer kv-a") is None
    assert told == [True, False, True]


async def test_a_bad_file_at_the_start_is_an_error(write) -> None:
    with pytest.raises(YamlFileError):
        await Keyring(write(text=b"x"), 1, lambda good: None).load()


async def test_a_reload_keeps_what_is_used(make_keyring, write) -> None:
    keyring = await make_keyring(entry("a", tokens_per_day=100))
    assert keyring.find(b"Bearer kv-a").limits.admit(100, 0.0, 0.0) is None
    write(entry("a", tokens_per_day=100, weight=2.0), entry("b"))
    await keyring.read_again()
    holder = keyring.find(b"Bearer kv-a")
    assert holder.key.weight == 2.0
    assert holder.limits.admit(1, 0.0, 0.0).limit is Limit.BUDGET


async def test_another_number_of_routers_keeps_what_is_used(make_keyring) -> None:
    keyring = await make_keyring(entry("a", tokens_per_day=100), entry("b"), routers=2)
    limits = keyring.find(b"Bearer kv-a").limits
    assert limits.admit(50, 0.0, 0.0) is None
    assert limits.admit(1, 0.0, 0.0).allowed == 50
    assert keyring.share(1)
    assert not keyring.share(1)
    assert limits.admit(50, 0.0, 0.0) is None
    assert limits.admit(1, 0.0, 0.0).allowed == 100
    assert keyring.share(4)
    assert limits.admit(1, 0.0, 0.0).allowed == 25


async def test_limits_are_divided_by_the_number_of_routers(make_keyring) -> None:
    keyring = await make_keyring(entry("a", tokens_per_day=100), routers=4)
    limits = keyring.find(b"Bearer kv-a").limits
    assert limits.admit(25, 0.0, 0.0) is None
    assert limits.admit(1, 0.0, 0.0).allowed == 25
