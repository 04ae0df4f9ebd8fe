from __future__ import annotations

from typing import Any

from kvasir_operator.load_protection import ANNOTATIONS, MARKER, lifted, protection, restored

KARPENTER = "karpenter.sh/do-not-disrupt"


def pod(annotations: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "a", "annotations": annotations}}


def test_a_pod_is_made_with_both_and_loses_them() -> None:
    made = protection({})
    assert made == {**ANNOTATIONS, MARKER: ",".join(ANNOTATIONS)}
    assert restored(pod(made)) == {}
    assert lifted(pod(made)) == dict.fromkeys(ANNOTATIONS)
    left = {MARKER: made[MARKER]}
    assert lifted(pod(left)) == {}
    assert restored(pod(left)) == ANNOTATIONS


def test_what_a_user_gives_stays_for_good() -> None:
    given = {KARPENTER: "true"}
    made = {**given, **protection(given)}
    assert made[KARPENTER] == "true"
    assert KARPENTER not in lifted(pod(made))
    assert protection(dict(ANNOTATIONS)) == {}


def test_pods_of_others_are_left_alone() -> None:
    assert lifted(pod(dict(ANNOTATIONS))) == {}
    assert restored(pod({MARKER: "a.b/c,"})) == {}
