"""What is counted for a request at a replica: from its start to its end, once."""

import pytest

from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec, Upstream
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.policy.base import LoadPolicy
from kvasir_router.proxy.attempts.assignment import Assignment
from kvasir_router.proxy.failures.failure import Failure, Kind
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool


class Told(LoadPolicy):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told = []

    def sent(self, query, choice) -> None:
        self.told.append((query, choice))


@pytest.fixture
async def replica():
    pool = ConnectionPool("10.0.0.1", 8000, connect_timeout=1.0, idle_timeout=1.0)
    return Replica(ReplicaSpec("r", "10.0.0.1", 8000), pool, 8, lambda: None)


@pytest.fixture
def start():
    """start(replica): an assignment, and what the policy was told."""

    def start(replica, new_tokens=30):
        policy = Told()
        query = Query(Request(), Envelope(model="m"))
        choice = Choice(replica, new_tokens=new_tokens)
        made = Assignment(query, Model(ModelSpec("m"), policy, 0), choice)
        assert policy.told == [(query, choice)]
        return made

    return start


async def test_it_counts_until_its_end_and_has_credit_until_its_first_byte(replica, start) -> None:
    one, other = start(replica), start(replica, 5)
    assert (replica.in_flight, replica.served, replica.load.credit) == (2, 2, 35)
    one.began()
    one.began()
    assert (replica.in_flight, replica.load.credit) == (2, 5)
    one.ended()
    other.ended()
    assert (replica.in_flight, replica.load.credit) == (0, 0)


async def test_its_end_counts_once(replica, start) -> None:
    one = start(replica)
    start(replica)
    for _ in range(3):
        one.ended()
    one.began()
    assert (replica.in_flight, replica.load.credit) == (1, 30)


@pytest.mark.parametrize(
    ("failure", "failed", "probes"),
    [
        (Failure("reset", Kind.DEATH), "reset", True),
        (Failure("draining", Kind.LEAVING), None, True),
        (Failure("503", Kind.CHARGED), None, True),
        (Failure("429", Kind.CHARGED), None, False),
        (Failure("500", Kind.CHARGED), "500", False),
    ],
)
async def test_failures(replica, start, failure, failed, probes) -> None:
    replica.observed(Health.READY)
    replica.probe_now.clear()
    start(replica).note(failure)
    assert list(replica.failures) == ([failed] if failed else [])
    assert replica.probe_now.is_set() is probes


async def test_a_server_of_others_rests_as_it_asks(start) -> None:
    pool = ConnectionPool("10.0.0.1", 443, connect_timeout=1.0, idle_timeout=1.0)
    spec = ReplicaSpec("r", "10.0.0.1", 443, upstream=Upstream())
    replica = Replica(spec, pool, 8, lambda: None)
    one = start(replica)
    assert one.foreign
    one.note(Failure("429", Kind.CHARGED, rest=20.0))
    assert replica.rests
