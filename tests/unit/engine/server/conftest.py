"""Hand on the fixtures of tests/support."""

from support.engine_server import (
    byte_tokenizer_fixture,
    scripted_core,
    serve_app,
    server,
    start_server,
    until,
)

__all__ = [
    "byte_tokenizer_fixture",
    "scripted_core",
    "serve_app",
    "server",
    "start_server",
    "until",
]
