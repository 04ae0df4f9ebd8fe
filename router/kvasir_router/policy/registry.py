"""The policies by name."""

from collections.abc import Callable

from kvasir_router.policy.base import Policy
from kvasir_router.policy.keyed import PrefixHash, Session
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.policy.round_robin import RoundRobin

POLICIES: dict[str, Callable[[], Policy]] = {
    "kv_aware": KvAware,
    "least_load": LeastLoad,
    "round_robin": RoundRobin,
    "prefix_hash": PrefixHash,
    "session": Session,
}


def make_policy(name: str) -> Policy:
    """A new policy. Raises ValueError, naming those that there are."""
    maker = POLICIES.get(name)
    if maker is None:
        raise ValueError(f"policy {name!r} is not one of {', '.join(POLICIES)}")
    return maker()
