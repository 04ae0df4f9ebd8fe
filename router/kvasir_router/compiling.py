"""Compile what `kvasir_router.compiled` names, for the Python that runs this:

    python -m kvasir_router.compiling

Nothing is done when it is there. Needs mypy, setuptools, a C compiler and Python's headers. Nothing
is written beside the sources.
"""

import os
import shutil
import tempfile
from pathlib import Path

from kvasir_router import compiled
from kvasir_router.wire.long_bodies import body_scan


def build(folder: Path) -> Path:
    """Compile into `folder`; returns the folder that is laid out like the packages. Raises
    SystemExit when a module is not what mypyc takes, or the compiler fails."""
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped]

    options = ["--ignore-missing-imports", "--cache-dir", str(folder / "types")]
    sources = [str(compiled.source_of(module)) for module in compiled.MODULES]
    # One file a module: they are compiled side by side.
    modules = mypycify(
        [*options, *sources],
        opt_level="1",
        debug_level="0",
        multi_file=True,
        target_dir=str(folder / "c"),
    )
    for module in modules:
        module.extra_compile_args = [*module.extra_compile_args, "-Wno-error"]
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.parallel = len(os.sched_getaffinity(0))
    command.ensure_finalized()
    command.run()
    return folder / "lib"


def main() -> None:
    """Build what is not there, and drop what was there for other sources."""
    body_scan.build()
    wanted = compiled.FOLDER / compiled.digest()
    if wanted.is_dir():
        return
    compiled.FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=compiled.FOLDER) as folder:
        built = build(Path(folder))
        if compiled.FOLDER / compiled.digest() != wanted:
            raise SystemExit("a source was changed in the meantime: run this again.")
        for old in compiled.FOLDER.iterdir():
            if old != Path(folder):
                shutil.rmtree(old)
        built.rename(wanted)


if __name__ == "__main__":
    main()
