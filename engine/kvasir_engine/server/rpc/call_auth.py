"""Authentication of gRPC calls by their metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER
from kvasir_engine.server.auth import Keyring


def admits_call(keyring: Keyring, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """True for a call with a fleet secret or, where there is none, with an API key."""
    headers = {
        key.encode(): value if isinstance(value, bytes) else value.encode()
        for key, value in metadata
    }
    return keyring.is_fleet(headers) if keyring.has_fleet else keyring.admits(headers)


async def refuse_call(keyring: Keyring, context: Any) -> None:
    """End the call with UNAUTHENTICATED."""
    wanted = FLEET_SECRET_HEADER if keyring.has_fleet else "authorization: Bearer KEY"
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, f"the metadata lacks a valid {wanted}; send it."
    )
