"""Hand on the fixtures of tests/support."""

from support.web_server import free_port, server

__all__ = [
    "free_port",
    "server",
]
