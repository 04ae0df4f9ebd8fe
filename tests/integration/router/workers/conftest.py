"""Hand on the fixtures of tests/support."""

from support.router_workers import config, fleet_of_two, start_clients, start_workers, until_fixture

__all__ = [
    "config",
    "fleet_of_two",
    "start_clients",
    "start_workers",
    "until_fixture",
]
