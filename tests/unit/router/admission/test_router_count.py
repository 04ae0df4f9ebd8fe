"""Routers that count themselves by a name."""

import asyncio

import pytest

from kvasir_router.admission.router_count import addresses_of, follow_peers


class Keyring:
    def __init__(self) -> None:
        self.shares: list[int] = []
        self.third = asyncio.Event()

    def share(self, routers: int) -> bool:
        self.shares.append(routers)
        if routers == 3:
            self.third.set()
        return True


async def test_the_number_follows_the_name_and_stays_where_it_leads_nowhere() -> None:
    answers = [OSError("no such name"), 2, 0, OSError("no DNS"), 3]
    keyring, asked = Keyring(), []

    async def count(name: str) -> int:
        asked.append(name)
        answer = answers.pop(0) if answers else 3
        if isinstance(answer, OSError):
            raise answer
        return answer

    following = asyncio.create_task(follow_peers(keyring.share, "routers.x.svc", 0.0, count))
    await keyring.third.wait()
    following.cancel()
    assert keyring.shares[:2] == [2, 3]
    assert set(asked) == {"routers.x.svc"}


async def test_a_router_of_two_families_counts_once(monkeypatch) -> None:
    found = [(family, 1, 6, "", (f"address-{at}", 0)) for family in (2, 10) for at in range(3)]

    async def resolve(*_: object, **__: object) -> list[object]:
        return [*found, found[0]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await addresses_of("x") == 3


async def test_names_are_resolved() -> None:
    assert await addresses_of("localhost") == 1
    with pytest.raises(OSError):
        await addresses_of("no-such-name.invalid")
