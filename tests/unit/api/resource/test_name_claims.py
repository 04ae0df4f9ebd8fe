from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvasir.resource.name_claims import Claim, owners

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def test_the_oldest_then_the_smaller_uid() -> None:
    claims = [
        Claim(LATE, "a", ("x", "y")),
        Claim(EARLY, "c", ("x",)),
        Claim(EARLY, "b", ("x", "z")),
    ]
    assert owners(claims) == {"x": "b", "y": "a", "z": "b"}


@given(
    st.lists(
        st.builds(
            Claim,
            st.sampled_from([EARLY, LATE]),
            st.sampled_from("abcdef"),
            st.lists(st.sampled_from("xyz"), max_size=3).map(tuple),
        ),
        unique_by=lambda claim: claim.uid,
    ),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter(claims: list[Claim], shuffler: object) -> None:
    shuffled = list(claims)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    assert owners(shuffled) == owners(claims)
