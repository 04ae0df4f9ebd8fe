"""The file of the fleet secret, which is followed."""

from __future__ import annotations

from kvasir.secret_file import SecretFile
from kvasir.wire.fleet_secret import FleetSecret, parse_fleet_secret


class FleetSecretFile(SecretFile[FleetSecret]):
    """The fleet secret of a process."""

    name = "fleet secret"
    none = FleetSecret
    parse = staticmethod(parse_fleet_secret)
