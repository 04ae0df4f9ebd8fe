"""The fleet secret: what routers and engines of one fleet share to know each other.

On HTTP and gRPC it travels in a header; the receiver compares it in constant time. On ZMQ both
sides derive the same two CURVE key pairs from it: the publisher is the server, a subscriber the
client. The server's public key is never published or sent over the wire in the clear, and CURVE
encrypts a client's first message to it; so only a holder of the secret gets past the handshake, in
either direction.

A file of it holds one secret a line. The first one is sent and is the publisher's; each one is
accepted, and tried by a subscriber. So it is replaced without a moment in which two parts know no
common one: the new secret is added as the last line everywhere, then put first everywhere, then the
old one is dropped. A line `hash-key:TEXT` is no secret that anybody is known by: block hashes and
tenants' salts are made of it instead of the first secret, and so outlast that one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kvasir.secret_file import SecretError, printable_lines

if TYPE_CHECKING:
    import zmq

FLEET_SECRET_HEADER = "x-kvasir-fleet-secret"  # noqa: S105 (the header's name, not a secret)
MAX_SECRETS = 8
"""Each one is compared with what a caller sends."""
_HASH_KEY = "hash-key:"


@dataclass(frozen=True, slots=True)
class FleetSecret:
    """The secrets of a fleet. Without any, its parts do not know each other."""

    accepted: tuple[str, ...] = field(default=(), repr=False)
    """Secrets that a caller may send."""
    hash_key: str = field(default="", repr=False)
    """Text that block hashes and tenants' salts are made of."""

    @property
    def sent(self) -> str:
        """The secret that this process sends; empty = none."""
        return self.accepted[0] if self.accepted else ""


def parse_fleet_secret(text: str) -> FleetSecret:
    """Return the secrets of a file's or a variable's text. Raises SecretError."""
    lines = printable_lines(text)
    keys = [line[len(_HASH_KEY) :].strip() for line in lines if line.startswith(_HASH_KEY)]
    secrets = tuple(dict.fromkeys(it for it in lines if not it.startswith(_HASH_KEY)))
    if not secrets:
        raise SecretError("it holds no secret; write one in its first line")
    if len(secrets) > MAX_SECRETS:
        raise SecretError(f"it holds {len(secrets)} secrets; leave {MAX_SECRETS} of them at most")
    if len(keys) > 1 or "" in keys:
        raise SecretError(f"a line {_HASH_KEY}TEXT may be there once, and not empty")
    return FleetSecret(secrets, keys[0] if keys else secrets[0])


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
