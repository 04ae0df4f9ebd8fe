"""The fleet's secrets in use by a process, kept as their file says."""

import hmac
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from kvasir.secret_file import SecretError
from kvasir.wire.fleet_secret import (
    FLEET_SECRET_HEADER,
    FleetSecret,
    parse_fleet_secret,
)
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_router.file_watch import FileWatch, FollowedFile

_log = structlog.get_logger("kvasir_router.files")


class FleetSecrets:
    """The first secret is sent to engines; each one is accepted, and tried with KV events."""

    def __init__(
        self,
        text: str | None = None,
        path: Path | None = None,
        reported: Callable[[bool], None] = lambda good: None,
    ) -> None:
        """`text`: what the router was started with; `path`: file that is followed, if any.

        `reported` is called after each attempt to read the changed file, with whether it was good.
        Raises SecretError for a text that cannot be used.
        """
        self.now = FleetSecret()
        self.lines = b""
        """Header lines that prove to Kvasir engines that this router is theirs."""
        self._file: FollowedFile[FleetSecret] | None = None
        if path is not None:
            read = partial(FleetSecretFile.read, path)
            self._file = FollowedFile(
                "fleet secret", FileWatch(path), read, reported, (SecretError,)
            )
        self.hash_key = ""
        self._use(parse_fleet_secret(text) if text else self.now)
        self.hash_key = self.now.hash_key
        """Text that hashes and salts are made of until the process ends: with another one nothing
        that is cached would be found, and nobody could change it in all processes at once."""

    def accepts(self, sent: str) -> bool:
        """Return True for one of the secrets, in a time that does not tell which one is near."""
        given = sent.encode("utf-8", "surrogateescape")
        return sum(hmac.compare_digest(given, it.encode()) for it in self.now.accepted) > 0

    async def load(self) -> None:
        """Read the file, if there is one; what cannot be used leaves what there was."""
        if self._file is not None:
            await self._file.look(self._use, force=True)

    async def follow(self) -> None:
        """Read the file whenever it has changed, for ever."""
        if self._file is not None:
            await self._file.follow(self._use)

    @property
    def is_file(self) -> bool:
        """Return True if the secrets may change."""
        return self._file is not None

    def _use(self, now: FleetSecret) -> None:
        self.now = now
        self.lines = f"{FLEET_SECRET_HEADER}: {now.sent}\r\n".encode() if now.sent else b""
        if self.hash_key and now.hash_key != self.hash_key:
            _log.warning(
                "the fleet's hash key has changed, which counts from the next start of routers and "
                "engines: until all of them have been started again, prompts that are cached may "
                "not be found; to keep the old one, write it as a line hash-key:TEXT"
            )
