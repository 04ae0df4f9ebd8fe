"""The policies by name."""

from collections.abc import Callable

from kvasir_router.policy.base import Policy
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.policy.round_robin import RoundRobin

POLICIES: dict[str, Callable[[], Policy]] = {
    "least_load": LeastLoad,
    "round_robin": RoundRobin,
}
