from __future__ import annotations

import re
import string

from hypothesis import example, given
from hypothesis import strategies as st

from kvasir.resource.ownership.model_name import claim_manifest
from kvasir.resource.ownership.name_claims import (
    MAX_OBJECT_NAME,
    Holder,
    claim_object_name,
    holders,
    names_of,
    read_claim,
)

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
ENDS = string.ascii_letters + string.digits
CLASSES = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
NAMES = st.one_of(
    st.sampled_from(ENDS),
    st.builds(
        lambda first, middle, last: first + middle + last,
        st.sampled_from(ENDS),
        st.text(ENDS + "-._:/", max_size=251),
        st.sampled_from(ENDS),
    ),
)
OWN = Holder("team", "m")


def test_a_name_that_may_be_an_objects_name_is_kept() -> None:
    for name in ("llama-3.1-8b", "kvasir-tiny", "a", "9b", "x--y"):
        assert claim_object_name("kvasir", name) == f"kvasir.{name}"


def test_a_plain_name_is_kept_while_it_fits() -> None:
    longest = "x" * (MAX_OBJECT_NAME - len("prod."))
    assert claim_object_name("prod", longest) == f"prod.{longest}"
    assert re.fullmatch(r"prod\.x+--[0-9a-f]{32}", claim_object_name("prod", f"{longest}x"))


def test_of_a_long_name_as_much_can_be_read_as_fits() -> None:
    for class_name in ("k", "k" * 40, "k" * 63):
        assert len(claim_object_name(class_name, "X" * 300)) == MAX_OBJECT_NAME


def test_any_other_name_can_be_read_in_that_of_its_claim() -> None:
    readable = r"prod\.meta-llama-llama-3-1-8b--[0-9a-f]{32}"
    assert re.fullmatch(readable, claim_object_name("prod", "meta-llama/Llama-3.1-8B"))
    assert claim_object_name("k", "Llama") != claim_object_name("k", "llama")


def test_a_plain_name_cannot_pass_for_the_encoding_of_another() -> None:
    encoded = claim_object_name("k", "Org/Model")
    imitation = encoded.removeprefix("k.")
    assert claim_object_name("k", imitation) != encoded
    assert claim_object_name("k", imitation[-32:]) != f"k.{imitation[-32:]}"


@given(CLASSES, NAMES)
@example("k" * 63, "x" * 253)
@example("k", "a..b")
@example("k", "a.-b")
def test_the_name_of_a_claim_is_one_that_an_api_server_takes(class_name: str, name: str) -> None:
    made = claim_object_name(class_name, name)
    assert SUBDOMAIN.fullmatch(made)
    assert len(made) <= MAX_OBJECT_NAME
    assert made.partition(".")[0] == class_name


@given(st.lists(st.tuples(CLASSES, NAMES), unique=True, max_size=30))
@example([("k", "a/b"), ("k", "a:b"), ("k", "A/b"), ("k", "a-b"), ("k", "a.b")])
def test_no_two_names_share_a_claim(pairs: list[tuple[str, str]]) -> None:
    assert len({claim_object_name(*pair) for pair in pairs}) == len(pairs)


@given(CLASSES, NAMES)
def test_a_claim_reads_as_it_was_written(class_name: str, name: str) -> None:
    claim = read_claim(claim_manifest(class_name, name, OWN, "u"))
    assert claim is not None
    assert (claim.class_name, claim.name, claim.holder, claim.holder_uid) == (
        *(class_name, name),
        *(OWN, "u"),
    )


def test_a_claim_whose_own_name_is_another_says_nothing() -> None:
    made = claim_manifest("k", "victim", OWN, "u")
    made["metadata"]["name"] = "k.other"
    assert read_claim(made) is None
    assert read_claim({"metadata": {"name": "k.x"}}) is None
    assert holders([read_claim(made)], "k") == {}


def test_a_name_has_a_holder_in_each_class() -> None:
    other = Holder("team", "n")
    claims = [
        read_claim(claim_manifest("a", "x", OWN, "u")),
        read_claim(claim_manifest("b", "x", other, "v")),
    ]
    assert holders(claims, "a") == {"x": OWN}
    assert holders(claims, "b") == {"x": other}


def test_names_of_a_stored_resource() -> None:
    resource = {"metadata": {"name": "m"}, "spec": {"model": {"aliases": ["a", "b"]}}}
    assert names_of(resource) == ["m", "a", "b"]
    assert names_of({"metadata": {"name": "m"}}) == ["m"]
