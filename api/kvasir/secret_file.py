"""Files of secrets, one a line, followed: what cannot be used leaves the last good secrets."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from kvasir.regular_files import read_regular_file

LOOK_SECONDS = 0.5
"""Seconds between two looks at a file that is followed."""

_log = logging.getLogger(__name__)


class SecretError(ValueError):
    """The text holds no secrets that can be used; the message says why, without a word of it."""


class Secrets(Protocol):
    """Content of a file of secrets."""

    @property
    def accepted(self) -> tuple[str, ...]:
        """Secrets that a caller may send."""
        ...


AnySecrets = TypeVar("AnySecrets", bound=Secrets)


class SecretFile(Generic[AnySecrets]):
    """Secrets of a process: `now`, which may change while their file is followed.

    A subclass says what they are and how a text becomes them.
    """

    name: ClassVar[str]
    """Name of them in messages, in the singular."""
    max_bytes: ClassVar[int] = 16 * 1024
    """Each secret is compared with what a caller sends."""

    def __init__(
        self,
        text: str = "",
        path: Path | None = None,
        reported: Callable[[bool], object] = lambda good: None,
    ) -> None:
        """`text`: what was there when the process was started; of the file at `path`, if there is
        one, what is there now counts, unless it cannot be used. `reported` is called after each
        look at the file, with whether it was good. Raises SecretError for a text that cannot be
        used."""
        self.now = self.parse(text) if text else self.none()
        self._path = path
        self._text = text
        self._reported = reported
        self._said = ""
        """Last reason in the log why the file cannot be used; empty while it can."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.look()

    def __reduce__(self) -> tuple[type[Self], tuple[str, Path | None]]:
        """Return what another process makes its own of, which nobody follows yet."""
        return type(self), (self._text, self._path)

    @staticmethod
    def none() -> AnySecrets:
        """Return what `now` is without a text."""
        raise NotImplementedError

    @staticmethod
    def parse(text: str) -> AnySecrets:
        """Return the secrets of a text. Raises SecretError."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: Path) -> AnySecrets:
        """Return what a file holds. Raises SecretError."""
        return cls._read(path)[1]

    @classmethod
    def read_text(cls, path: Path) -> str:
        """Return the text of a file that can be used. Raises SecretError."""
        return cls._read(path)[0]

    @classmethod
    def _read(cls, path: Path) -> tuple[str, AnySecrets]:
        try:
            text = _bytes(path, cls.max_bytes).decode("ascii")
        except OSError as error:
            why = f"{path} cannot be read: {error.strerror or error}"
        except ValueError:
            why = f"{path} cannot be used: a byte is not printable ASCII; write one secret a line"
        else:
            try:
                return text, cls.parse(text)
            except SecretError as error:
                why = f"{path} cannot be used: {error}"
        raise SecretError(why)

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
            text, found = self._read(self._path)
        except SecretError as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.error("%s; the last good %s stays.", error, self.name)
            self._reported(False)
            return False
        if self._said:
            _log.info("the %s can be read again.", self.name)
        self._said, self._text = "", text
        self._reported(True)
        if found == self.now:
            return False
        self.now = found
        _log.info("the %s has changed; %d accepted now.", self.name, len(found.accepted))
        return True

    def follow(self, changed: Callable[[], object] = lambda: None) -> None:
        """Look at the file again and again, in a thread, which also calls `changed`."""
        if self._path is None or self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._follow, args=(changed,), name=self.name, daemon=True
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
                _log.exception("the %s has changed, and not everybody knows.", self.name)


def printable_lines(text: str) -> list[str]:
    """Return the lines that are not empty, without the blanks around them. Raises SecretError."""
    # Not splitlines(), which also splits at characters that are refused below
    lines = [line.strip(" \t\r") for line in text.split("\n")]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise SecretError("a line is not printable ASCII; write one secret a line")
    return [line for line in lines if line]


def _bytes(path: Path, most: int) -> bytes:
    raw = read_regular_file(path, most)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes")
    return raw
