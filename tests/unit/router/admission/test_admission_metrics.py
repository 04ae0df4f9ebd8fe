"""Metrics of tenants and of those who wait: names, labels and numbers."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir_router.admission.admission import OTHERS, Admission
from kvasir_router.admission.admission_metrics import (
    MAX_KEYS,
    MAX_TENANTS,
    TenantMeter,
    key_families,
    queue_families,
)
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key


@pytest.fixture
async def admission(tmp_path) -> Admission:
    """Admission by a file of two keys."""
    keys = tuple(ApiKey(id=name, hash=hash_key(name.encode())) for name in ("one", "another"))
    path = tmp_path / "keys.yaml"
    path.write_bytes(dump_keys(KeyFile(keys=keys)))
    made = Admission(path)
    assert made.keyring is not None
    await made.keyring.load()
    return made


def samples(families: Any) -> dict[tuple[str, ...], float]:
    """Values by name and labels, without what is only bookkeeping of the format."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_waits_and_what_a_model_has_used() -> None:
    model, other = SimpleNamespace(name="m"), SimpleNamespace(name="n")
    fleet: Any = SimpleNamespace(models={"m": model, "n": other})
    used = SimpleNamespace(
        prompt_tokens=5, cached_tokens=3, completion_tokens=2, refusals=Counter(full=1, timeout=4)
    )
    queue: Any = SimpleNamespace(waiting=lambda each: 7 if each is model else 0)
    metrics: Any = SimpleNamespace(models={"m": used, "gone": used})
    found = samples(queue_families(fleet, metrics, queue))
    assert {key[1:]: value for key, value in found.items()} == {
        ("m",): 7,
        ("n",): 0,
        ("m", "prompt"): 5,
        ("m", "cached"): 3,
        ("m", "completion"): 2,
        ("m", "full"): 1,
        ("m", "timeout"): 4,
    }


def test_without_keys_there_are_no_tenants() -> None:
    assert not list(key_families(Admission(), TenantMeter()))


async def test_what_tenants_use_is_added_up(admission) -> None:
    meter = TenantMeter()
    meter.used("a", 200, 10, 4)
    meter.used("a", 200, 1, 2)
    meter.used("a", 429, 0, 0)
    meter.used("b", 500, 3, 0)
    admission.refusals.update({("", "unauthorized"): 6, ("a", "tokens_per_day"): 1})
    admission.reads = Counter(ok=2, refused=1)
    found = samples(key_families(admission, meter))
    assert {key[1:]: value for key, value in found.items() if len(key) > 1} == {
        ("", "unauthorized"): 6,
        ("a", "tokens_per_day"): 1,
        ("a", "200"): 2,
        ("a", "429"): 1,
        ("b", "500"): 1,
        ("a", "prompt"): 11,
        ("a", "completion"): 6,
        ("b", "prompt"): 3,
        ("b", "completion"): 0,
        ("ok",): 2,
        ("refused",): 1,
    }
    assert [value for key, value in found.items() if len(key) == 1] == [2], "keys in use"


def test_tenants_beyond_a_thousand_share_a_series() -> None:
    meter = TenantMeter()
    assert MAX_TENANTS == 1000
    for number in range(MAX_TENANTS):
        meter.used(f"t{number}", 200, 1, 1)
    assert OTHERS not in meter.tenants
    for name in ("late", "later"):
        meter.used(name, 200, 5, 2)
        assert meter.label(name) == OTHERS
    assert meter.label("t0") == "t0"
    others = meter.tenants[OTHERS]
    assert (others.codes[200], others.prompt_tokens, others.completion_tokens) == (2, 10, 4)


async def test_one_name_may_be_refused_by_many_tenants(admission) -> None:
    meter = TenantMeter()
    for number in range(MAX_TENANTS + 2):
        admission.refusals[f"t{number}", "forbidden"] += 1
    found = samples(key_families(admission, meter))
    shared = [value for key, value in found.items() if key[1:] == (OTHERS, "forbidden")]
    assert shared == [2]


def test_keys_beyond_a_number_are_counted_together_and_all_are_told_of() -> None:
    meter, told = TenantMeter(), []
    meter.spent = lambda *amounts: told.append(amounts)
    for at in range(MAX_KEYS + 3):
        meter.used_by_key(f"k{at}", "t", "m", 1, 0, 2)
    meter.used_by_key("k0", "t", "m", 10, 4, 20)
    assert len(meter.keys) == MAX_KEYS + 1
    assert meter.keys[OTHERS, OTHERS] == [3, 6]
    assert meter.keys["k0", "t"] == [11, 22]
    assert told[-1] == ("k0", "t", "m", 10, 4, 20)
    assert len(told) == MAX_KEYS + 4
