"""What the policies choose, on replicas whose counts are real."""

from collections import Counter

import pytest

from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.policy.registry import check_policy, make_policy, policy_names
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


@pytest.mark.parametrize("name", policy_names())
async def test_one_candidate_is_chosen(name: str, replicas) -> None:
    policy = make_policy(PolicySpec(name))
    choice = policy.choose(QUERY, replicas[2:])
    assert choice.replica is replicas[2]
    policy.sent(QUERY, choice)
    policy.ended(QUERY, choice, None)
    policy.forget_replica(replicas[2])


@pytest.mark.parametrize("name", policy_names())
async def test_every_policy_explains_its_choice(name: str, replicas) -> None:
    replicas[0].acquire()
    scores = make_policy(PolicySpec(name)).explain(QUERY, replicas)
    assert [score.replica for score in scores] == ["r0", "r1", "r2"]
    assert sum(score.chosen for score in scores) == 1


async def test_a_session_is_told_as_the_options_say(replicas, ask) -> None:
    options = {"header": "X-Conversation", "cookie": "conversation"}
    policy = make_policy(PolicySpec("session", options))
    for line in (b"x-conversation: %d\r\n", b"Cookie: conversation=%d\r\n"):
        chosen = {}
        for number in range(40):
            query = ask(lines=(line % number,))
            chosen[number] = policy.choose(query, replicas).replica
            assert policy.choose(query, replicas).replica is chosen[number]
        assert len(set(chosen.values())) == 3


def test_a_models_options_go_over_the_routers() -> None:
    defaults = {"kv_aware": {"miss_weight": "2", "max_load_ratio": 3}, "session": {"cookie": "c"}}
    policy = make_policy(PolicySpec("kv_aware", {"max_load_ratio": 1.5}), defaults)
    assert isinstance(policy, KvAware)
    assert (policy._miss_weight, policy._max_load_ratio) == (2.0, 1.5)
    assert policy.spec == PolicySpec("kv_aware", {"max_load_ratio": 1.5})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("best", {}, "'best' is not one of kv_aware, least_load, .*; use one of these, or install"),
        ("kv_aware", {"mis_weight": 1}, "mis_weight is not a known field; did you mean miss_weig"),
        ("kv_aware", {"miss_weight": "x"}, "kv_aware: miss_weight must be a valid number, not 'x'"),
        ("kv_aware", {"miss_weight": -1}, "miss_weight must be greater than or equal to 0, not -1"),
        ("kv_aware", {"max_text_blocks": 9}, "max_text_blocks must be .* 65536, not 9"),
        ("session", {"header": "a b"}, "session: header must match pattern .*, not 'a b'"),
        ("least_load", {"a": 1, "b": 2}, "policy least_load has no options; leave out a, b"),
    ],
)
def test_what_is_no_policy_is_refused_with_a_remedy(name: str, options, message: str) -> None:
    for refuse in (make_policy, check_policy):
        with pytest.raises(ValueError, match=message):
            refuse(PolicySpec(name, options))
