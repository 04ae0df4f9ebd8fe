"""The compiled form of the modules on a request's way, used wherever it has been built.

`kvasir_router.compiling` has mypyc turn these modules, as they are, into extension modules, and
puts them into the environment, in a folder that is named by a digest of the sources. `use` takes
them from the folder of the present sources: when one of these is changed, Python finds no such
folder and reads the sources, as if nothing had ever been compiled.
"""

import os
import sys
import sysconfig
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import kvasir

MODULES = (
    "kvasir.wire.text_chain",
    "kvasir_router.admission.admission",
    "kvasir_router.admission.fairness",
    "kvasir_router.admission.keyring",
    "kvasir_router.admission.limits",
    "kvasir_router.admission.request_queue",
    "kvasir_router.admission.model_queue",
    "kvasir_router.admission.tenant_shares",
    "kvasir_router.admission.outcome",
    "kvasir_router.admission.ticket",
    "kvasir_router.fleet.circuit_breaker",
    "kvasir_router.fleet.retry_budget",
    "kvasir_router.fleet.fleet",
    "kvasir_router.fleet.replica_load",
    "kvasir_router.fleet.model",
    "kvasir_router.fleet.poison_table",
    "kvasir_router.fleet.prefill_rate",
    "kvasir_router.fleet.replica",
    "kvasir_router.fleet.engine_slots",
    "kvasir_router.fleet.target",
    "kvasir_router.index.approximate",
    "kvasir_router.index.block_table",
    "kvasir_router.index.hit_check",
    "kvasir_router.index.model_index",
    "kvasir_router.index.replica_bits",
    "kvasir_router.index.residency",
    "kvasir_router.index.prefix_search",
    "kvasir_router.index.text_map",
    "kvasir_router.telemetry.model_metrics",
    "kvasir_router.fleet.choice",
    "kvasir_router.picker.pick",
    "kvasir_router.picker.picker_client",
    "kvasir_router.policy.kv_aware",
    "kvasir_router.policy.token_load",
    "kvasir_router.proxy.answer_target",
    "kvasir_router.proxy.attempts.assignment",
    "kvasir_router.proxy.attempts.attempt",
    "kvasir_router.proxy.attempts.attempts",
    "kvasir_router.proxy.attempts.candidates",
    "kvasir_router.proxy.attempts.outgoing_request",
    "kvasir_router.proxy.attempts.running_attempts",
    "kvasir_router.proxy.attempts.stream_silence",
    "kvasir_router.proxy.client.arrival",
    "kvasir_router.proxy.client.client_registry",
    "kvasir_router.proxy.client.connection",
    "kvasir_router.proxy.client.deadlines",
    "kvasir_router.proxy.client.gateway_client",
    "kvasir_router.proxy.client.head_refusal",
    "kvasir_router.proxy.client.read_turn",
    "kvasir_router.proxy.client_response",
    "kvasir_router.proxy.event_stream",
    "kvasir_router.proxy.failures.failure",
    "kvasir_router.proxy.fallbacks",
    "kvasir_router.proxy.kept_answer",
    "kvasir_router.proxy.gateway",
    "kvasir_router.wire.endpoints",
    "kvasir_router.wire.header_names",
    "kvasir_router.wire.http_request",
    "kvasir_router.wire.known_header",
    "kvasir_router.proxy.accounting",
    "kvasir_router.wire.upstream_pool",
    "kvasir_router.proxy.relay",
    "kvasir_router.proxy.relay_services",
    "kvasir_router.proxy.request_record",
    "kvasir_router.proxy.request_reading",
    "kvasir_router.wire.long_bodies.received_body",
    "kvasir_router.wire.request_parser",
    "kvasir_router.wire.sse",
    "kvasir_router.proxy.transcript",
    "kvasir_router.wire.upstream",
    "kvasir_router.wire.usage",
    "kvasir_router.wire.query",
    "kvasir_router.scaling.signals",
    "kvasir_router.scaling.latency_window",
    "kvasir_router.workers.replication.event_log",
    "kvasir_router.workers.replication.index_log",
    "kvasir_router.workers.replication.model_log",
    "kvasir_router.workers.shared_memory.shared_limits",
    "kvasir_router.workers.shared_memory.load_table",
    "kvasir_router.workers.shared_memory.shared_replica",
)
"""Modules that run for each request, and those that inherit from them: a class that is not compiled
cannot inherit from one that is. All of them or none are used compiled. None defines a
msgspec.Struct: its types would be lost."""

SWITCH = "KVASIR_ROUTER_COMPILED"
"""Environment variable; with `0` the sources are used."""

FOLDER = Path(sys.prefix) / "lib" / "kvasir_router"
"""Hold a folder for each digest."""

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_SHARED = "__mypyc"
"""Ends the name of the module that holds the others' code."""

_PACKAGES = {"kvasir": Path(kvasir.__path__[0]), "kvasir_router": Path(__file__).parent}


def source_of(module: str) -> Path:
    """The file of one of MODULES."""
    package, *rest = module.split(".")
    return _PACKAGES[package].joinpath(*rest).with_suffix(".py")


def digest() -> str:
    """Return the digest of what the compiled form depends on: sources and interpreter."""
    found = sha256(f"{sys.version} {_SUFFIX}".encode())
    for module in MODULES:
        found.update(b"\0%b\0%b" % (module.encode(), source_of(module).read_bytes()))
    return found.hexdigest()[:32]


class _Finder(MetaPathFinder):
    """Find the modules in a folder that is laid out like the packages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """MetaPathFinder.find_spec."""
        if name not in MODULES and not name.endswith(_SHARED):
            return None
        file = self._folder.joinpath(*name.split(".")).with_name(name.rpartition(".")[2] + _SUFFIX)
        return spec_from_file_location(name, file) if file.exists() else None


def use() -> None:
    """Have the compiled form imported, if there is one of the present sources. Not when one of the
    modules has been read from its source already: the forms do not know each other."""
    if os.environ.get(SWITCH) == "0" or not FOLDER.is_dir():
        return
    folder = FOLDER / digest()
    if folder.is_dir() and sys.modules.keys().isdisjoint(MODULES):
        sys.meta_path.insert(0, _Finder(folder))


def in_use() -> bool:
    """Return whether this process runs the compiled form."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def is_outdated() -> bool:
    """Return whether there is a compiled form, but of other sources: the present ones are read."""
    if in_use() or os.environ.get(SWITCH) == "0" or not FOLDER.is_dir():
        return False
    return any(FOLDER.iterdir()) and not (FOLDER / digest()).is_dir()
