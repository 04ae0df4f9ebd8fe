"""What the policies choose, on replicas whose counts are real."""

from collections import Counter

import pytest

from kvasir_router.options.router_settings import PolicyOptions
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.policy.registry import POLICIES, make_policy
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query

QUERY = Query(Request(), Envelope())


async def test_least_load_takes_the_fewest_in_flight(replicas) -> None:
    policy = LeastLoad()
    for replica, count in zip(replicas, (3, 1, 2), strict=True):
        for _ in range(count):
            replica.acquire()
    assert policy.choose(QUERY, replicas).replica is replicas[1]
    replicas[2].release()
    replicas[2].release()
    assert policy.choose(QUERY, replicas).replica is replicas[2]


async def test_least_load_breaks_ties_evenly(replicas) -> None:
    policy = LeastLoad()
    replicas[1].acquire()
    chosen = Counter(policy.choose(QUERY, replicas).replica.id for _ in range(2000))
    assert chosen["r1"] == 0
    assert min(chosen["r0"], chosen["r2"]) > 800


async def test_least_load_never_herds(make_replicas) -> None:
    """Choices with no end in between fill replicas evenly: the count is raised at once."""
    policy, replicas = LeastLoad(), make_replicas(7)
    for _ in range(70):
        policy.choose(QUERY, replicas).replica.acquire()
    assert {replica.in_flight for replica in replicas} == {10}


async def test_round_robin_takes_turns_whatever_the_load(replicas) -> None:
    policy = RoundRobin()
    for _ in range(50):
        replicas[0].acquire()
    chosen = []
    for _ in range(30):
        choice = policy.choose(QUERY, replicas)
        policy.sent(QUERY, choice)
        chosen.append(choice.replica.id)
    assert Counter(chosen) == {"r0": 10, "r1": 10, "r2": 10}
    assert chosen[:3] == chosen[3:6]


@pytest.mark.parametrize("name", POLICIES)
async def test_one_candidate_is_chosen(name: str, replicas) -> None:
    policy = make_policy(name)
    choice = policy.choose(QUERY, replicas[2:])
    assert choice.replica is replicas[2]
    policy.sent(QUERY, choice)
    policy.ended(QUERY, choice, None)
    policy.forget(replicas[2])


@pytest.mark.parametrize("name", POLICIES)
async def test_every_policy_explains_its_choice(name: str, replicas) -> None:
    replicas[0].acquire()
    scores = make_policy(name).explain(QUERY, replicas)
    assert [score.replica for score in scores] == ["r0", "r1", "r2"]
    assert sum(score.chosen for score in scores) == 1


async def test_a_session_is_told_as_the_options_say(replicas, ask) -> None:
    policy = make_policy("session", PolicyOptions("X-Conversation", "conversation"))
    for line in (b"x-conversation: %d\r\n", b"Cookie: conversation=%d\r\n"):
        chosen = {}
        for number in range(40):
            query = ask(lines=(line % number,))
            chosen[number] = policy.choose(query, replicas).replica
            assert policy.choose(query, replicas).replica is chosen[number]
        assert len(set(chosen.values())) == 3


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="'best' is not one of kv_aware, least_load, round_robin"):
        make_policy("best")
