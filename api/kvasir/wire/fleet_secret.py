"""The fleet secret: what routers and engines of one fleet share to know each other.

On HTTP and gRPC it travels in a header; the receiver compares it in constant time. On ZMQ both
sides derive the same two CURVE key pairs from it: the publisher is the server, a subscriber the
client. The server's public key is never published or sent over the wire in the clear, and CURVE
encrypts a client's first message to it; so only a holder of the secret gets past the handshake, in
either direction.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import zmq

FLEET_SECRET_HEADER = "x-kvasir-fleet-secret"  # noqa: S105 (the header's name, not a secret)


class CurveKeyPair(NamedTuple):
    """A CURVE key pair, Z85-encoded, 40 bytes each."""

    public: bytes
    secret: bytes


def curve_key_pair(fleet_secret: str, role: str) -> CurveKeyPair:
    """The key pair of `role` ("server" or "client"): its secret key is BLAKE2b-256 of both."""
    # Imported here: the engine's core and the CLI do without zmq until events are switched on
    import zmq
    from zmq.utils import z85

    digest = hashlib.blake2b(
        fleet_secret.encode(), digest_size=32, person=b"kvasir.curve", salt=role.encode()
    ).digest()
    secret = z85.encode(digest)
    return CurveKeyPair(zmq.curve_public(secret), secret)


def secure_server(socket: zmq.Socket[Any], fleet_secret: str) -> None:
    """Let only holders of the secret connect to `socket`; call before `bind`. "" = anyone."""
    if not fleet_secret:
        return
    socket.curve_publickey, socket.curve_secretkey = curve_key_pair(fleet_secret, "server")
    socket.curve_server = True


def secure_client(socket: zmq.Socket[Any], fleet_secret: str) -> None:
    """Let `socket` connect to a server with the secret, and to no other. "" = to anyone."""
    if not fleet_secret:
        return
    socket.curve_publickey, socket.curve_secretkey = curve_key_pair(fleet_secret, "client")
    socket.curve_serverkey = curve_key_pair(fleet_secret, "server").public
