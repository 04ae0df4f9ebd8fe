"""The policies by name."""

from collections.abc import Callable

from kvasir_router.fleet.policy import Policy
from kvasir_router.options.router_settings import PolicyOptions
from kvasir_router.policy.hashing import PrefixHash, Session
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.policy.round_robin import RoundRobin

POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "kv_aware": lambda options: KvAware(),
    "least_load": lambda options: LeastLoad(),
    "round_robin": lambda options: RoundRobin(),
    "prefix_hash": lambda options: PrefixHash(),
    "session": lambda options: Session(options.session_header, options.session_cookie),
}
_DEFAULTS = PolicyOptions()


def make_policy(name: str, options: PolicyOptions = _DEFAULTS) -> Policy:
    """A new policy. Raises ValueError, naming those that there are."""
    maker = POLICIES.get(name)
    if maker is None:
        raise ValueError(f"policy {name!r} is not one of {', '.join(POLICIES)}")
    return maker(options)
