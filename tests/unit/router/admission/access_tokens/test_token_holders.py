"""Tokens in use: found, remembered, revoked; their tenants' limits."""

import asyncio
import time

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from support.token_issuer import public_jwk, sign

from kvasir_router.admission.access_tokens import token_holders
from kvasir_router.admission.access_tokens.key_fetch import KeyFetchError
from kvasir_router.admission.access_tokens.token_holders import TokenHolders
from kvasir_router.admission.access_tokens.token_source import Reason, TokenError
from kvasir_router.admission.limits import KeyLimits, Limit

OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


class Holders:
    """Holders of tokens, their file, and what they told."""

    def __init__(self, path, issuer) -> None:
        self.path = path
        self.issuer = issuer
        self.told: list[tuple[str, bool]] = []
        self.made = TokenHolders(path, 1, lambda name, good: self.told.append((name, good)))
        self.task: asyncio.Task | None = None

    async def write(self, *issuers: dict, text: str | None = None) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text or yaml.safe_dump({"issuers": list(issuers)}))
        new.replace(self.path)
        if self.task is not None:
            await self.made.read_again()

    async def start(self, **fields) -> TokenHolders:
        await self.write(self.issuer.entry(**fields))
        await self.made.load()
        self.task = asyncio.create_task(self.made.fetch_all())
        return self.made

    def find(self, token: str):
        return self.made.find(b"Bearer " + token.encode())

    def why_not(self, token: str) -> Reason:
        with pytest.raises(TokenError) as error:
            self.find(token)
        return error.value.reason


@pytest.fixture
async def holders(tmp_path, token_issuer):
    made = Holders(tmp_path / "issuers.yaml", token_issuer)
    yield made
    if made.task is not None:
        made.task.cancel()
        await asyncio.gather(made.task, return_exceptions=True)


@pytest.fixture
async def started(holders, eventually):
    await holders.start()
    await eventually(lambda: holders.made.fetches["sso", "ok"] == 1)
    return holders


@pytest.mark.parametrize(
    ("header", "is_token"),
    [
        (b"Bearer eyJh.eyJh.c2ln", True),
        (b"bearer  ewog.eyJh.c2ln ", True),
        (b"Bearer eyJh.a.b.c.d", True),
        (b"Bearer kv-eyJh.a.b", False),
        (b"Bearer eyJh.a", False),
        (b"Basic eyJh.eyJh.c2ln", False),
        (b"", False),
    ],
)
def test_a_token_is_known_by_its_form(header, is_token) -> None:
    assert TokenHolders.is_token(header) is is_token


async def test_a_tokens_tenant_has_what_the_file_gives_it(started) -> None:
    holder = started.find(started.issuer.token())
    assert (holder.id, holder.key.tenant) == ("sso:team-a", "team-a")
    limited = started.find(started.issuer.token(tenant="team-b"))
    assert limited.limits.admit(2000, 0.0, 0.0) is None
    other = started.find(started.issuer.token(tenant="team-b", sub="another"))
    assert other.limits.admit(1, 0.0, 0.0).limit is Limit.BUDGET
    assert started.why_not(started.issuer.token(tenant="team-c")) is Reason.TENANT
    assert started.made.refusals == {"tenant": 1}


async def test_kept_responses_are_the_subjects(started) -> None:
    one, same, other = (
        started.find(started.issuer.token(sub=name, iat=at)).owner
        for name, at in (("a", 1), ("a", 2), ("b", 1))
    )
    assert one == same != other
    assert one.startswith("sso:team-a:")


async def test_a_token_is_checked_once_and_now_and_then(started, monkeypatch) -> None:
    token = started.issuer.token()
    first = started.find(token)
    assert started.find(token) is first
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 301)
    assert started.find(token) is not first


async def test_a_token_that_is_remembered_still_expires(started, monkeypatch) -> None:
    """With the 30 s by which clocks may differ."""
    now = int(time.time())
    token = started.issuer.token(exp=now + 100)
    first = started.find(token)
    monkeypatch.setattr("time.time", lambda: now + 129.0)
    assert started.find(token) is first
    monkeypatch.setattr("time.time", lambda: now + 130.0)
    assert started.find(token) is not first  # it is checked, by a clock that is not this one


async def test_what_is_remembered_is_bounded_and_holds_no_token(started, monkeypatch) -> None:
    monkeypatch.setattr(token_holders, "_MAX_KNOWN", 3)
    tokens = [started.issuer.token(sub=str(at)) for at in range(8)]
    for token in tokens:
        started.find(token)
    assert len(started.made._known) == 3
    assert {len(each) for each in started.made._known} == {32}


async def test_before_the_keys_have_come_the_router_cannot_tell(holders) -> None:
    await holders.write(holders.issuer.entry())
    await holders.made.load()
    assert holders.why_not(holders.issuer.token()) is Reason.NO_KEYS


async def test_a_new_key_is_fetched_for_the_first_token_that_names_it(
    started, eventually, monkeypatch
) -> None:
    new = started.issuer.token(key=OTHER_KEY, headers={"kid": "k2"})
    assert started.why_not(new) is Reason.KEY  # just fetched
    started.issuer.keys.append(public_jwk(OTHER_KEY, "ES256", kid="k2"))
    monkeypatch.setattr("kvasir_router.admission.access_tokens.key_schedule.ASKED_SECONDS", 0.0)
    assert started.why_not(new) is Reason.NO_KEYS
    await eventually(lambda: started.made.fetches["sso", "ok"] == 2)
    assert started.find(new).id == "sso:team-a"


async def test_a_withdrawn_key_ends_its_tokens(started, eventually) -> None:
    token = started.issuer.token()
    started.find(token)
    started.issuer.keys = [public_jwk(OTHER_KEY, "ES256", kid="k2")]
    started.made.schedules["sso"].due = 0.0
    started.made._asked.set()
    await eventually(lambda: started.made.fetches["sso", "ok"] == 2)
    assert started.why_not(token) is Reason.KEY


async def test_failures_are_told_and_keep_the_keys(started, eventually) -> None:
    async def fail(issuer):
        raise KeyFetchError("no answer")

    assert ("keys of issuer sso", True) in started.told
    started.made.fetch = fail
    schedule = started.made.schedules["sso"]
    schedule.due = 0.0
    started.made._asked.set()
    await eventually(lambda: started.made.fetches["sso", "failed"] >= 1)
    assert started.find(started.issuer.token())
    assert started.told[-1] == ("keys of issuer sso", False)
    schedule._fetched -= 14401
    assert started.why_not(started.issuer.token(iat=5)) is Reason.NO_KEYS


async def test_a_slow_issuer_or_a_defect_holds_up_no_other(holders, eventually) -> None:
    real, hung = holders.made.fetch, asyncio.Event()

    async def fetch(issuer):
        if issuer.name == "slow":
            hung.set()
            await asyncio.Event().wait()
        if issuer.name == "bad":
            raise RuntimeError("a defect")
        return await real(issuer)

    holders.made.fetch = fetch
    others = [
        holders.issuer.entry(name=name, issuer=f"https://{name}.example")
        for name in ("slow", "bad")
    ]
    await holders.write(*others, holders.issuer.entry())
    await holders.made.load()
    holders.task = asyncio.create_task(holders.made.fetch_all())
    await eventually(lambda: holders.made.fetches["sso", "ok"] == 1)
    await eventually(lambda: holders.made.fetches["bad", "failed"] == 1)
    assert hung.is_set()
    assert holders.find(holders.issuer.token())


async def test_an_edited_file_counts_at_once_and_keeps_keys_and_use(started) -> None:
    token = started.issuer.token(tenant="team-b")
    assert started.find(token).limits.admit(2000, 0.0, 0.0) is None
    tenants = [{"tenant": "team-b", "tokens_per_day": 2001, "priority": "bulk"}]
    await started.write(started.issuer.entry(tenants=tenants))
    assert started.why_not(started.issuer.token()) is Reason.TENANT
    limits = started.find(token).limits
    assert limits.admit(1, 0.0, 0.0) is None
    assert limits.admit(1, 0.0, 0.0).allowed == 2001
    await started.write(started.issuer.entry(audiences=["other"]))
    assert started.why_not(token) is Reason.AUDIENCE
    await started.write(text="issuers: [")
    assert started.told[-1] == ("issuers", False)
    assert started.why_not(token) is Reason.AUDIENCE
    await started.write()
    assert started.why_not(token) is Reason.ISSUER
    assert started.made.fetches == {("sso", "ok"): 1}


async def test_an_issuer_that_changes_its_trust_has_its_keys_fetched_anew(
    started, eventually
) -> None:
    await started.write(started.issuer.entry(algorithms=["EdDSA"]))
    assert started.why_not(started.issuer.token()) is Reason.ALGORITHM
    await eventually(lambda: started.made.fetches["sso", "failed"] >= 1)


async def test_every_tenant_has_limits_by_itself_under_a_prefix(holders, eventually) -> None:
    tenants = [{"tenant": "*", "tokens_per_day": 10}]
    await holders.start(tenants=tenants, tenant_prefix="sso/")
    await eventually(lambda: holders.made.fetches["sso", "ok"] == 1)
    for name in ("x", "y"):
        holder = holders.find(holders.issuer.token(tenant=name))
        assert holder.key.tenant == f"sso/{name}"
        assert holder.limits.admit(10, 0.0, 0.0) is None
        assert holder.limits.admit(10, 0.0, 0.0).limit is Limit.BUDGET


async def test_limits_are_made_and_divided_as_keys_are(started) -> None:
    asked = []

    def make(key_id, allowance, now):
        asked.append(key_id)
        return KeyLimits(allowance, now)

    started.made.make_limits = make
    started.made.share(4)
    limits = started.find(started.issuer.token(tenant="team-b")).limits
    assert asked == ["sso:team-b"]
    limits.admit(500, 0.0, 0.0)
    assert limits.admit(1, 0.0, 0.0).allowed == 500
    started.made.share(1)
    assert limits.admit(1, 0.0, 0.0) is None


async def test_tenants_are_bounded_and_those_of_yesterday_go(
    holders, eventually, monkeypatch
) -> None:
    monkeypatch.setattr(token_holders, "MAX_TENANTS", 2)
    await holders.start(tenants=[{"tenant": "*"}])
    await eventually(lambda: holders.made.fetches["sso", "ok"] == 1)
    far = int(time.time()) + 10 * 86400
    tokens = {name: sign(holders.issuer.url, tenant=name, exp=far) for name in "abc"}
    holders.find(tokens["a"])
    holders.find(tokens["b"])
    assert holders.why_not(tokens["c"]) is Reason.FULL
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 86_401)
    assert holders.find(tokens["c"]).id == "sso:c"
    assert set(holders.made._tenants) == {"sso:c"}
