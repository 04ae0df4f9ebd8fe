"""Locks of models in use: an engine holds a shared lock on its model's manifest while it lives."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from kvasir.models.cache.layout import MANIFEST

logger = logging.getLogger(__name__)


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


def is_held(directory: Path) -> bool:
    """True while an engine holds the model in `directory`, and where that cannot be found out.

    The manifest is opened for writing, though nothing is written: on NFS an exclusive flock is a
    lock for writing, which a descriptor that only reads is refused.
    """
    try:
        with (directory / MANIFEST).open("r+b") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        logger.warning("cannot tell if %s is in use: %s", directory.name, error)
        return True
    return False
