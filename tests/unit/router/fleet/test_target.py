"""Which of a canary's models a request goes to."""

import json
from collections import Counter

from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.target import Canary, rename
from kvasir_router.policy.least_load import LeastLoad

MODELS = [Model(ModelSpec(name), LeastLoad(), 0) for name in "abc"]
USERS = [f"user-{i}" for i in range(4000)]


def canary(*weights: float) -> Canary:
    return Canary(list(zip(MODELS, weights, strict=False)))


def chosen(split: Canary) -> dict[str, str]:
    return {user: split.pick(user).model.name for user in USERS}


def test_users_are_split_by_weight_and_stay() -> None:
    before = chosen(canary(90, 10))
    assert 0.06 < Counter(before.values())["b"] / len(USERS) < 0.14
    assert chosen(canary(90, 10)) == before


def test_a_raised_weight_moves_users_to_its_model_only() -> None:
    before, after = chosen(canary(60, 30, 10)), chosen(canary(60, 30, 40))
    moved = {(before[user], after[user]) for user in USERS if before[user] != after[user]}
    assert moved == {("a", "c"), ("b", "c")}


def test_weight_0_gets_nobody() -> None:
    split = canary(0, 1)
    assert set(chosen(split).values()) == {"b"}
    assert {split.pick(None).model.name for _ in range(100)} == {"b"}


def test_without_a_user_each_request_is_drawn() -> None:
    split = canary(1, 1)
    drawn = Counter(split.pick(None).model.name for _ in range(2000))
    assert 700 < drawn["a"] < 1300


def test_a_users_name_may_be_any_string() -> None:
    assert canary(1, 1).pick("\ud800").model in MODELS


def test_renaming_changes_nothing_else() -> None:
    body = b'{ "n": 1.50, "model":"c", "messages": [ {"content":"\\u00e9\\/"} ], "x": 1e400}'
    renamed = rename(body, 'a"b')
    assert b"1.50" in renamed
    assert b'[ {"content":"\\u00e9\\/"} ]' in renamed
    assert json.loads(renamed)["model"] == 'a"b'
    assert renamed.count(b"model") == 1
