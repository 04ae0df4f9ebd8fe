"""What a process has spent, on its way to the store."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from kvasir_router.spend import spend_ledger
from kvasir_router.spend.spend_ledger import SpendLedger
from kvasir_router.spend.spend_store import Spend, SpendBatch, SpendStore
from kvasir_router.spend.sqlite_spend import SqliteSpend
from kvasir_router.store_error import StoreError


class Failing(SqliteSpend):
    """A file that fails when a test says so: before or after it has written."""

    fails = ""

    async def add(self, batch: SpendBatch) -> None:
        if self.fails == "before":
            raise StoreError("away")
        await super().add(batch)
        if self.fails == "after":
            raise StoreError("no answer")


@pytest.fixture
async def open_ledger(tmp_path):
    opened = []

    async def start(router: str = "r1") -> SpendLedger:
        made = SpendLedger(Failing(tmp_path / "spend.db", 10), router)
        await made.open()
        opened.append(made)
        return made

    yield start
    for each in opened:
        await each.store.close()


def today() -> int:
    return int(time.time() // 86_400)


async def totals(store: SpendStore) -> dict[str, Spend]:
    return {who.key: amounts for who, amounts in await store.report(0, today() + 1, 10_000)}


async def test_a_restart_and_another_router_know_what_was_used(open_ledger) -> None:
    first = await open_ledger()
    first.used("a", "t", "m", 10, 4, 5)
    first.used("a", "t", "n", 1, 0, 0)
    await first.sync()
    assert first.elsewhere("a", time.time()) == 0
    restarted = await open_ledger("r2")
    assert restarted.elsewhere("a", time.time()) == 16
    assert restarted.elsewhere("b", time.time()) == 0
    restarted.used("a", "t", "m", 100, 0, 0)
    await restarted.close()
    await first.sync()
    assert first.elsewhere("a", time.time()) == 100
    assert first.elsewhere("a", time.time() + 86_400) == 0


async def test_processes_of_one_router_are_not_elsewhere(open_ledger) -> None:
    one, two = await open_ledger(), await open_ledger()
    one.used("a", "t", "m", 10, 0, 0)
    await one.sync()
    await two.sync()
    assert two.elsewhere("a", time.time()) == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_loses_and_doubles_nothing(open_ledger, when) -> None:
    ledger = await open_ledger()
    ledger.used("a", "t", "m", 1, 0, 0)
    ledger.store.fails = when
    with capture_logs() as logs:
        for _ in range(3):
            await ledger.sync()
            ledger.used("a", "t", "m", 10, 0, 0)
        assert ledger.syncs == {"ok": 1, "failed": 3}
        ledger.store.fails = ""
        await asyncio.gather(ledger.sync(), ledger.sync())
    assert await totals(ledger.store) == {"a": Spend(4, 31, 0, 0)}
    events = [each["event"] for each in logs]
    assert events == ["spend cannot be written down now", "spend is written down again"]


async def test_what_waits_is_bounded_and_sent_in_parts(open_ledger, monkeypatch) -> None:
    monkeypatch.setattr(spend_ledger, "MAX_PENDING", 5)
    monkeypatch.setattr(spend_ledger, "_MAX_ROWS", 2)
    ledger = await open_ledger()
    for at in range(7):
        ledger.used(f"k{at}", "t", "m", 1, 0, 0)
    ledger.used("k0", "t", "m", 1, 0, 0)
    assert ledger.dropped == 2
    await ledger.sync()
    assert len(await totals(ledger.store)) == 5
    assert [family.name for family in ledger.families()] == [
        "kvasir_router_spend_syncs",
        "kvasir_router_spend_dropped",
    ]


async def test_the_loop_goes_on(open_ledger, monkeypatch, eventually) -> None:
    monkeypatch.setattr(spend_ledger, "SYNC_SECONDS", 0.0)
    ledger = await open_ledger()
    following = asyncio.create_task(ledger.follow())
    await eventually(lambda: ledger.syncs["ok"] > 2)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
