"""What both stores promise."""

import asyncio

from kvasir_router.spend.spend_store import Spend, SpendBatch, Spender

A = Spender(20_000, "a", "team-a", "m")
B = Spender(20_000, "sso:team-b", "team-b", "org/m:x")
NEXT = A._replace(day=20_001)


def batch(number: int, rows: dict, router: str = "r1", writer: str = "w1") -> SpendBatch:
    return SpendBatch(router, f"{router}:{writer}", number, rows)


async def test_amounts_add_up_by_day_key_and_model(open_store) -> None:
    store = await open_store()
    await store.add(batch(1, {A: Spend(1, 10, 4, 5), B: Spend(2, 1, 0, 0)}))
    await store.add(batch(2, {A: Spend(1, 1, 1, 1), NEXT: Spend(1, 7, 0, 0)}))
    other = A._replace(model="n")
    await store.add(batch(1, {A: Spend(1, 100, 0, 100), other: Spend(1, 1, 0, 1)}, "r2"))
    assert await store.report(20_000, 20_000, 10) == [
        (A, Spend(3, 111, 5, 106)),
        (other, Spend(1, 1, 0, 1)),
        (B, Spend(2, 1, 0, 0)),
    ]
    assert (await store.report(20_000, 20_001, 10))[-1] == (NEXT, Spend(1, 7, 0, 0))
    assert len(await store.report(20_000, 20_001, 2)) == 2
    assert await store.report(19_000, 19_002, 10) == []


async def test_tokens_of_others_are_told_without_a_routers_own(open_store) -> None:
    store = await open_store()
    await store.add(batch(1, {A: Spend(1, 10, 0, 5), A._replace(model="n"): Spend(1, 1, 0, 0)}))
    await store.add(batch(1, {A: Spend(1, 100, 90, 0)}, "r1", "w2"))
    await store.add(batch(1, {B: Spend(1, 3, 0, 4), NEXT: Spend(1, 7, 0, 0)}, "r2"))
    again = await open_store()
    assert await again.elsewhere(20_000, "r1") == {"sso:team-b": 7}
    assert await again.elsewhere(20_000, "r2") == {"a": 116}
    assert await again.elsewhere(20_000, "r3") == {"a": 116, "sso:team-b": 7}
    assert await again.elsewhere(20_001, "r1") == {"a": 7}
    assert await again.elsewhere(20_002, "r1") == {}


async def test_a_batch_that_is_sent_again_counts_once(open_store) -> None:
    store = await open_store()
    for number in (1, 1, 2, 2):
        await store.add(batch(number, {A: Spend(1, 10, 0, 0)}))
    await store.add(batch(1, {A: Spend(1, 10, 0, 0)}, writer="w2"))
    assert await store.report(20_000, 20_000, 10) == [(A, Spend(3, 30, 0, 0))]
    assert await store.elsewhere(20_000, "r2") == {"a": 30}


async def test_writers_at_once_lose_nothing(open_store) -> None:
    stores = [await open_store() for _ in range(3)]
    await asyncio.gather(
        *(
            store.add(batch(number, {A: Spend(1, 1, 0, 1)}, writer=f"w{at}"))
            for at, store in enumerate(stores)
            for number in (1,)
        )
    )
    assert await stores[0].report(20_000, 20_000, 10) == [(A, Spend(3, 3, 0, 3))]
