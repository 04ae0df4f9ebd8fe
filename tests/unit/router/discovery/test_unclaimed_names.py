"""What is served under which name while no operator has claimed it: a table."""

import msgspec
import pytest

from kvasir.resource import labels
from kvasir.resource.ownership.name_claims import Holder
from kvasir_router.discovery.kubernetes_objects import LLMDeployment
from kvasir_router.discovery.unclaimed_names import unclaimed_names

OWN = labels.DEFAULT_CLASS
TINY = {"tiny": Holder("n", "tiny")}


@pytest.fixture
def served(deployment):
    """served(*statuses, claimed, before, **spec): the names of one LLMDeployment each."""

    def served(*made, claimed=(), before=None):
        found = msgspec.convert(list(made), list[LLMDeployment])
        return unclaimed_names(found, claimed, OWN, before or {})

    return served


def judged(it, accepted="True", taken="", created="2026-01-01T00:00:00Z"):
    it["status"] = {"conditions": [{"type": "Accepted", "status": accepted}]}
    if taken:
        it["status"]["className"] = taken
    it["metadata"]["creationTimestamp"] = created
    return it


def test_what_an_operator_without_claims_has_judged_is_served(served, deployment) -> None:
    it = judged(deployment("tiny", model={"uri": "x", "aliases": ["a"]}))
    assert served(it) == {**TINY, "a": Holder("n", "tiny")}
    assert served(it, claimed={"a"}) == TINY
    assert served(judged(deployment("tiny"), "False")) == TINY


def test_a_new_one_waits_for_its_claim(served, deployment) -> None:
    assert served(deployment("tiny")) == {}
    told = deployment("tiny") | {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert served(told) == {}


def test_one_of_another_class_is_not_ours(served, deployment) -> None:
    assert served(judged(deployment("tiny", className="other"))) == {}
    assert served(judged(deployment("tiny", className=OWN))) == TINY
    assert served(judged(deployment("tiny"), taken="other"), before=TINY) == {}


def test_one_that_was_taken_stays_until_its_claim_is_seen(served, deployment) -> None:
    it = judged(deployment("tiny"), taken=OWN)
    assert served(it) == {}
    assert served(it, before=TINY) == TINY
    assert served(it, before=TINY, claimed={"tiny"}) == {}
    assert served(it, before={"tiny": Holder("n", "other")}) == {}


def test_of_several_the_accepted_ones_come_first_then_the_oldest(served, deployment) -> None:
    def named(name, **how):
        return judged(deployment(name, model={"uri": "x", "name": "tiny"}), **how)

    oldest = named("a", accepted="False", created="2024-01-01T00:00:00Z")
    older = named("b", created="2025-01-01T00:00:00Z")
    assert served(oldest, named("c"), older) == {"tiny": Holder("n", "b")}
    assert served(named("c"), oldest) == {"tiny": Holder("n", "c")}
