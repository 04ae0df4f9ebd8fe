"""Start of the one-file plugin `kubectl-kvasir`: `__main__.py` of its archive.

Python cannot import compiled modules out of an archive, so it is unpacked once, into a folder that
is named by the archive's content, in XDG_CACHE_HOME or ~/.cache.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def main() -> None:
    """Unpack what is not unpacked yet, and run it."""
    file = Path(sys.argv[0] if zipfile.is_zipfile(sys.argv[0]) else __file__).resolve()
    file = file if file.is_file() else file.parent
    with zipfile.ZipFile(file) as archive:
        folder = f"py{sys.version_info[0]}{sys.version_info[1]}"
        tops = {name.partition("/")[0] for name in archive.namelist()}
        if folder not in tops:
            known = ", ".join(f"3.{top[3:]}" for top in sorted(tops) if top.startswith("py3"))
            sys.exit(f"kvasir: this file runs on Python {known}, and python3 is {sys.version[:6]}")
        root = _unpacked(file, archive)
    sys.path[:0] = [str(root / folder), str(root / "lib")]
    from kvasir.cli.kubectl import plugin

    if Path(sys.argv[0]).name.startswith("kubectl_complete"):
        plugin.complete()
    plugin.main()


def _unpacked(file: Path, archive: zipfile.ZipFile) -> Path:
    """Return the folder with the archive's content; several processes may make it at once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = cache / "kubectl-kvasir" / hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    if not wanted.is_dir():
        wanted.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Path(tempfile.mkdtemp(dir=wanted.parent))  # for its owner alone: it is code
        try:
            archive.extractall(made)
            made.rename(wanted)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not wanted.is_dir():
                raise
    return wanted


if __name__ == "__main__":
    main()
