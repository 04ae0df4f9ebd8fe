"""Remove compiled kernels that no engine uses: those of former images, or all."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from kvasir.models.cache.layout import KERNELS, KERNELS_MARKER
from kvasir.models.cache.use_lock import exclusive

logger = logging.getLogger(__name__)


def remove_former(root: Path) -> list[Path]:
    """Empty the unused directories of kernels on the volume at `root`, but for the one that each
    LLMDeployment used last; return them."""
    return [each for each in _by_use(root, newest=False) if _empty(each)]


def remove_all(root: Path) -> list[Path]:
    """Empty all unused directories of kernels on the volume at `root`; return them."""
    return [each for newest in (False, True) for each in _by_use(root, newest) if _empty(each)]


def _by_use(root: Path, newest: bool) -> list[Path]:
    """Directories with a marker: of each LLMDeployment the one that was used last, or all others.

    Without a marker a directory is left alone: engines of earlier versions make none, and those
    that just begin have not made theirs.
    """
    found = []
    for own in sorted((root / KERNELS).glob("*/")):
        marked = [(_used(each), each) for each in own.iterdir() if _used(each) is not None]
        in_order = [each for _, each in sorted(marked)]
        found += in_order[-1:] if newest else in_order[:-1]
    return found


def _used(directory: Path) -> float | None:
    """When kernels were used last, seconds since 1970; None without a marker."""
    try:
        return (directory / KERNELS_MARKER).stat().st_mtime
    except OSError:
        return None


def _empty(directory: Path) -> bool:
    """Remove what is in a directory, unless an engine uses it or nothing is; tell if it was.

    Directory and marker stay: a pod that begins may have them mounted by now, and waits for the
    lock, which is kept until all is removed.
    """
    try:
        with exclusive(directory / KERNELS_MARKER) as mine:
            content = [each for each in directory.iterdir() if each.name != KERNELS_MARKER]
            if not mine or not content:
                return False
            for each in content:
                if each.is_dir() and not each.is_symlink():
                    shutil.rmtree(each, ignore_errors=True)
                else:
                    each.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("kernels in %s are not removed: %s", directory, error)
        return False
    logger.info("removed the kernels in %s from the cache", directory)
    return True
