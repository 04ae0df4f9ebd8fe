"""The file of the fleet secret, followed: what cannot be used leaves the last good secrets."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from kvasir.regular_files import read_regular_file
from kvasir.wire.fleet_secret import FleetSecret, FleetSecretError, parse_fleet_secret

LOOK_SECONDS = 0.5
"""Seconds between two looks at a file that is followed."""
_MAX_BYTES = 16 * 1024

_log = logging.getLogger(__name__)


def read_text(path: Path) -> str:
    """Return the text of a file that holds a fleet secret. Raises FleetSecretError."""
    return _read(path)[0]


def read_fleet_secret(path: Path) -> FleetSecret:
    """Return what the file holds. Raises FleetSecretError."""
    return _read(path)[1]


class FleetSecretFile:
    """The fleet secret of a process: `now`, which may change while the file is followed."""

    def __init__(self, text: str = "", path: Path | None = None) -> None:
        """`text`: what was there when the process was started; of the file at `path`, if there is
        one, what is there now counts, unless it cannot be used. Raises FleetSecretError for a text
        that cannot be."""
        self.now = parse_fleet_secret(text) if text else FleetSecret()
        self._path = path
        self._text = text
        self._said = ""
        """Last reason in the log why the file cannot be used; empty while it can."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.look()

    def __reduce__(self) -> tuple[type[FleetSecretFile], tuple[str, Path | None]]:
        """Return what another process makes its own of, which nobody follows yet."""
        return FleetSecretFile, (self._text, self._path)

    @property
    def is_file(self) -> bool:
        """True if it may change."""
        return self._path is not None

    @property
    def text(self) -> str:
        """The text that `now` was made of."""
        return self._text

    def look(self) -> bool:
        """Read the file, if there is one; True if it holds other secrets than before."""
        if self._path is None:
            return False
        try:
            text, found = _read(self._path)
        except FleetSecretError as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.error("%s; the last good fleet secret stays.", error)
            return False
        if self._said:
            _log.info("the fleet secret can be read again.")
        self._said, self._text = "", text
        if found == self.now:
            return False
        self.now = found
        _log.info("the fleet secret has changed; %d accepted now.", len(found.accepted))
        return True

    def follow(self, changed: Callable[[], object] = lambda: None) -> None:
        """Look at the file again and again, in a thread, which also calls `changed`."""
        if self._path is None or self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._follow, args=(changed,), name="fleet-secret", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Look at it no more."""
        # Not joined: a file system that hangs would hold up the end of the process
        self._ended.set()

    def _follow(self, changed: Callable[[], object]) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                if self.look():
                    changed()
            except Exception:  # what is followed is followed on
                _log.exception("the fleet secret has changed, and not everybody knows.")


def _read(path: Path) -> tuple[str, FleetSecret]:
    try:
        text = _bytes(path).decode("ascii")
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror or error}"
    except ValueError:
        why = f"{path} cannot be used: a byte is not printable ASCII; write one secret a line"
    else:
        try:
            return text, parse_fleet_secret(text)
        except FleetSecretError as error:
            why = f"{path} cannot be used: {error}"
    raise FleetSecretError(why)


def _bytes(path: Path) -> bytes:
    raw = read_regular_file(path, _MAX_BYTES)
    if len(raw) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_BYTES} bytes")
    return raw
