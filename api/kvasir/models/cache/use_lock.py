"""Locks of what is in use: an engine holds shared ones while it lives, on its model's manifest and
on the marker of its compiled kernels."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvasir.models.cache.layout import KERNELS_MARKER, MANIFEST

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_LONGEST_REMOVAL = 60.0
"""Seconds that an engine waits for who is removing its kernels."""


def hold(directory: Path) -> int | None:
    """Mark the model in `directory` as in use while this process lives, or until the descriptor
    that is returned is closed.

    None where there is no manifest (it is no cache's model) or the volume has no locks.
    """
    try:
        descriptor = os.open(directory / MANIFEST, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def hold_kernels(directory: Path) -> int | None:
    """Mark the compiled kernels in `directory` as in use, as `hold` does a model. The marker is
    made if there is none.

    Waits for who is removing kernels there: what is left then is an empty directory. None where the
    directory cannot be written to, or the volume has no locks.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / KERNELS_MARKER, os.O_RDONLY | os.O_CREAT, 0o666)
    except OSError:
        return None
    with suppress(OSError):  # another user's: then its time is that of the first start
        os.utime(directory / KERNELS_MARKER)
    try:
        _lock_shared(descriptor)
    except OSError as error:
        logger.warning("the kernels in %s cannot be marked as in use: %s", directory, error)
        os.close(descriptor)
        return None
    return descriptor


def _lock_shared(descriptor: int) -> None:
    end = time.monotonic() + _LONGEST_REMOVAL
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def is_held(directory: Path) -> bool:
    """True while an engine holds the model in `directory`, and where that cannot be found out."""
    try:
        with exclusive(directory / MANIFEST) as mine:
            return not mine
    except FileNotFoundError:
        return False


@contextmanager
def exclusive(marker: Path) -> Iterator[bool]:
    """Keep engines from holding `marker`; False if one does, or that cannot be found out.

    It is opened for writing, though nothing is written: on NFS an exclusive flock is a lock for
    writing, which a descriptor that only reads is refused. Raises FileNotFoundError without marker.
    """
    descriptor = None
    try:
        descriptor = os.open(marker, os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = True
    except FileNotFoundError:
        raise
    except BlockingIOError:
        mine = False
    except OSError as error:
        logger.warning("cannot tell if %s is in use: %s", marker.parent.name, error)
        mine = False
    try:
        yield mine
    finally:
        if descriptor is not None:
            os.close(descriptor)
