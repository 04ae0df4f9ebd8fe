"""A replica's health from two witnesses, and who is told when it does not answer."""

import asyncio

import pytest

from kvasir_router.discovery.specs import Departure, ReplicaSpec
from kvasir_router.fleet.replica import Health, LoadStreamState, Replica
from kvasir_router.wire.upstream_pool import ConnectionPool

STARTING, READY, NOT_READY, SUSPECT, DOWN = Health


class Request:
    """A watcher that counts; leaves the replica when told, as a relay does."""

    def __init__(self, replica: Replica) -> None:
        self.told = 0
        self.leaves: list[Request] = [self]
        replica.watchers.add(self)

    def replica_suspected(self, replica: Replica) -> None:
        self.told += 1
        replica.watchers.difference_update(self.leaves)


@pytest.fixture
async def replica() -> Replica:
    pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
    return Replica(ReplicaSpec("r0", "127.0.0.1", 1), pool, 10, lambda: None)


async def test_silence_makes_it_suspect_until_both_speak(replica: Replica) -> None:
    replica.heard(LoadStreamState.READY)
    replica.observed(READY)
    replica.heard(LoadStreamState.SILENT)
    assert replica.health is SUSPECT
    assert replica.probe_now.is_set()
    replica.observed(READY)
    assert replica.health is SUSPECT, "its probe alone does not do"
    replica.probe_now.clear()
    replica.heard(LoadStreamState.READY)
    assert replica.health is SUSPECT, "nor does its load stream alone"
    assert replica.probe_now.is_set()
    replica.observed(READY)
    assert replica.health is READY


async def test_a_stream_that_never_spoke_is_no_witness(replica: Replica) -> None:
    replica.observed(READY)
    assert replica.health is READY


async def test_its_own_word_that_it_is_not_ready_counts_at_once(replica: Replica) -> None:
    replica.heard(LoadStreamState.READY)
    replica.observed(READY)
    replica.heard(LoadStreamState.NOT_READY)
    assert replica.health is NOT_READY
    replica.observed(READY)
    assert replica.health is NOT_READY, "a probe that was on its way is older"
    replica.heard(LoadStreamState.READY)
    replica.observed(READY)
    assert replica.health is READY


async def test_a_process_that_is_gone_takes_its_word_and_its_cache_with_it(
    replica: Replica,
) -> None:
    emptied = []
    replica.emptied = lambda: emptied.append(1)
    replica.heard(LoadStreamState.READY)
    replica.observed(READY)
    replica.heard(LoadStreamState.SILENT)
    replica.observed(DOWN)
    replica.observed(DOWN)
    replica.failed("refused", DOWN)
    assert emptied == [1]
    replica.observed(READY)
    assert replica.health is READY, "the new process's stream has not spoken yet"
    replica.failed("refused", DOWN)
    assert emptied == [1, 1]


async def test_watchers_hear_of_each_failed_probe_of_a_suspect(replica: Replica) -> None:
    replica.observed(READY)
    request = Request(replica)
    replica.observed(SUSPECT)
    assert request.told == 0, "the first failure only makes it suspect"
    replica.observed(SUSPECT)
    assert request.told == 1
    replica.observed(SUSPECT)
    assert request.told == 1, "it has left"


async def test_silence_and_a_good_probe_tell_nobody(replica: Replica) -> None:
    replica.heard(LoadStreamState.READY)
    replica.observed(READY)
    request = Request(replica)
    replica.heard(LoadStreamState.SILENT)
    replica.observed(READY)
    assert (replica.health, request.told) == (SUSPECT, 0)
    replica.observed(DOWN)
    assert request.told == 0, "whoever refuses new connections may still serve old ones"


async def test_many_watchers_are_told_in_several_turns(replica: Replica) -> None:
    replica.observed(READY)
    requests = [Request(replica) for _ in range(100)]
    replica.observed(SUSPECT)
    replica.observed(SUSPECT)
    assert 0 < sum(request.told for request in requests) < 100
    gone = next(request for request in requests if not request.told)
    replica.watchers.discard(gone)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [request for request in requests if request.told != 1] == [gone]


async def test_a_revived_replica_gets_requests_whatever_its_last_process_did(
    replica: Replica,
) -> None:
    replica.observed(READY)
    for _ in range(5):
        replica.failed("reset", SUSPECT)
    assert not replica.breaker.allows
    replica.observed(DOWN)
    replica.observed(READY)
    assert replica.breaker.allows


class TestDeparture:
    @pytest.mark.parametrize(
        ("departure", "health", "told"),
        [
            (Departure.NONE, READY, 0),
            (Departure.LATER, READY, 0),
            (Departure.NOW, READY, 1),
            (Departure.NOW, NOT_READY, 1),
            (Departure.NOW, STARTING, 0),
            # Its requests are told when a probe fails too, or find out themselves
            (Departure.NOW, SUSPECT, 0),
            (Departure.NOW, DOWN, 0),
        ],
    )
    async def test_who_is_told_to_go(
        self, replica: Replica, departure: Departure, health: Health, told: int
    ) -> None:
        request = Request(replica)
        replica.health = health
        replica.told_departure = departure
        replica.give_streams_away()
        assert request.told == told

    async def test_each_probe_tells_those_that_found_no_place(self, replica: Replica) -> None:
        request = Request(replica)
        request.leaves = []
        replica.told_departure = Departure.NOW
        for probes in (1, 2, 3):
            replica.observed(READY)
            assert request.told == probes
        replica.told_departure = Departure.NONE
        replica.observed(READY)
        assert request.told == 3


async def test_one_that_says_that_it_ends_gives_its_streams_away(replica: Replica) -> None:
    request = Request(replica)
    replica.heard(LoadStreamState.READY)
    replica.observed(READY)
    assert replica.departure is Departure.NONE
    replica.heard(LoadStreamState.LEAVING)
    assert (replica.departure, replica.health) == (Departure.NOW, NOT_READY)
    assert request.told == 1, "at once"
    again = Request(replica)
    replica.observed(READY)
    assert replica.health is NOT_READY, "a probe that was on its way is older"
    assert again.told == 1


async def test_the_next_process_at_its_address_stays(replica: Replica) -> None:
    replica.heard(LoadStreamState.LEAVING)
    replica.observed(READY)
    replica.observed(DOWN)
    assert replica.departure is Departure.NONE
    replica.heard(LoadStreamState.READY)
    replica.observed(READY)
    assert (replica.departure, replica.health) == (Departure.NONE, READY)


@pytest.mark.parametrize("told", Departure)
async def test_what_discovery_says_counts_beside_its_own_word(
    replica: Replica, told: Departure
) -> None:
    replica.told_departure = told
    assert replica.departure is told
    replica.heard(LoadStreamState.LEAVING)
    assert replica.departure is Departure.NOW
