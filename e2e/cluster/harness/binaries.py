"""The harness's own binaries, built from the Go modules in e2e/cluster/go.

Each module's binaries lie in `<cache>/<hash of its sources>/`, so every checkout with the same
sources shares them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.commands import run
from harness.errors import HarnessError
from harness.files import content_hash
from harness.places import SOURCES, cache
from harness.toolchain import go

GO = SOURCES / "go"
FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")
SECONDS = 3600
"""A build's limit; the longest takes about 6 minutes on two idle cores."""


@dataclass(frozen=True)
class Module:
    """One Go module and the packages of it that become binaries."""

    name: str
    packages: dict[str, str]
    """Binary name -> Go package."""
    kubernetes_version: bool = False
    """True if the module's Kubernetes version is linked in: charts check what the server says."""
    mod: str = "go"
    """Stem of the module's .mod and .sum files; another one than go is for other versions."""

    @property
    def directory(self) -> Path:
        return GO / self.name

    @property
    def output(self) -> Path:
        """Directory of the module's binaries once built."""
        sources = [*self.directory.glob("**/*.go"), *self.directory.glob(f"{self.mod}.*")]
        return cache() / content_hash(sources, GO, *FLAGS, self._linker_flags())

    @property
    def version(self) -> str:
        """Version of Kubernetes that the module requires. Raises HarnessError."""
        return _kubernetes_version(self.directory / f"{self.mod}.mod")

    def is_built(self) -> bool:
        return all((self.output / name).is_file() for name in self.packages)

    def build(self) -> None:
        """Build what is not there. Raises HarnessError."""
        output = self.output
        output.mkdir(parents=True, exist_ok=True)
        own = () if self.mod == "go" else (f"-modfile={self.mod}.mod",)
        environment = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}
        for name, package in self.packages.items():
            if (output / name).is_file():
                continue
            # Renamed when whole: a build that was interrupted is none.
            unfinished = output / f".{name}.{os.getpid()}"
            linker = ("-ldflags", self._linker_flags())
            run(
                *(go(), "build", *FLAGS, *own, *linker, "-o", unfinished, package),
                cwd=self.directory,
                env=environment,
                timeout=SECONDS,
            )
            unfinished.rename(output / name)

    def _linker_flags(self) -> str:
        flags = "-s -w"
        if self.kubernetes_version:
            version = self.version
            major, minor, _ = version.split(".")
            base, client = "k8s.io/component-base/version", "k8s.io/client-go/pkg/version"
            flags += f" -X {base}.gitVersion=v{version} -X {client}.gitVersion=v{version}"
            flags += f" -X {base}.gitMajor={major} -X {base}.gitMinor={minor}"
        return flags


def _kubernetes_version(go_mod: Path) -> str:
    match = re.search(r"^\s*k8s\.io/kubernetes v(\d+\.\d+\.\d+)$", go_mod.read_text(), re.MULTILINE)
    if not match:
        raise HarnessError(f"{go_mod} does not require k8s.io/kubernetes; run go/update.sh")
    return match[1]


@dataclass(frozen=True)
class DebianProgram:
    """A program of one of the packages that e2e/cluster/packages.sh installs."""

    name: str

    def is_built(self) -> bool:
        return shutil.which(self.name) is not None


KUBE = Module("kube", {"kube": ".", "fakegpu": "./fakegpu"}, kubernetes_version=True)
COREDNS = Module("coredns", {"coredns": "."})
HELM = Module("helm", {"helm": "helm.sh/helm/v3/cmd/helm"})
PROMTOOL = DebianProgram("promtool")
PAUSE = Module("pause", {"pause": "."})
MODULES = (KUBE, COREDNS, HELM, PAUSE)
OLDEST = Module("apiserver", {"apiserver-oldest": "."}, kubernetes_version=True, mod="oldest")
NEWEST = Module("apiserver", {"apiserver-newest": "."}, kubernetes_version=True)
OTHERS = {"oldest": OLDEST, "newest": NEWEST}
"""API servers of the oldest supported version and of the newest, for tests without nodes."""
KWOK = Module("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})
"""Simulated nodes, for benchmarks/operator_scale.py."""


def binary(name: str) -> Path:
    """The built binary `name`. Raises HarnessError when it is not built yet."""
    module = next(each for each in (*MODULES, *OTHERS.values(), KWOK) if name in each.packages)
    path = module.output / name
    if not path.is_file():
        verb = "versions-build" if module in OTHERS.values() else "cluster-build"
        raise HarnessError(f"{name} is not built: run `make {verb}` (once, some minutes)")
    return path


def build_all(say: Callable[[str], None], modules: Iterable[Module] = MODULES) -> None:
    """Build every module that is not in the cache. Raises HarnessError."""
    for module in modules:
        if not module.is_built():
            say(f"building {', '.join(module.packages)}")
            module.build()
