"""A routing policy of another package: found by its entry point, its sink told in every process."""

import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest
from support.installed_package import install_package
from support.router_workers import until

from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir.wire.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from kvasir_engine.kv.event_publisher import KVEventPublisher

pytestmark = pytest.mark.slow

SECRET = "s3cret"
POLICY = '''
import os
from collections import defaultdict
from pathlib import Path

from kvasir_router.fleet.choice import Choice
from kvasir_router.options.policy_options import PolicyOptions
from kvasir_router.policy.base import LoadPolicy


class Options(PolicyOptions):
    folder: Path
    least: bool = False


class Sink:
    """Counts blocks, and writes the counts down in a file of its process."""

    def __init__(self, folder):
        self.blocks = defaultdict(set)
        self._file = folder / str(os.getpid())

    def stored(self, replica, event):
        self._changed(replica, self.blocks[replica] | {*event.block_hashes})

    def removed(self, replica, event):
        self._changed(replica, self.blocks[replica] - {*event.block_hashes})

    def cleared(self, replica):
        self._changed(replica, set())

    def learned(self, report):
        raise NotImplementedError

    def _changed(self, replica, blocks):
        self.blocks[replica] = blocks
        held = {replica.id: len(held) for replica, held in self.blocks.items() if held}
        counts = sorted(f"{replica}={count}" for replica, count in held.items())
        self._file.write_text(" ".join(counts))


class MostBlocks(LoadPolicy):
    options_type = Options

    def __init__(self, options):
        self.sink = Sink(options.folder)
        self._sign = -1 if options.least else 1

    def choose(self, query, candidates):
        held = self.sink.blocks
        return Choice(max(candidates, key=lambda each: self._sign * len(held.get(each, ()))))
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    points = {"kvasir.router_policies": {"most_blocks": "most_blocks:MostBlocks"}}
    install_package(site, "most_blocks", POLICY, points)
    return site


@pytest.fixture
def publishers(monkeypatch):
    monkeypatch.setenv("KVASIR_FLEET_SECRET", SECRET)
    made = [
        KVEventPublisher(*["tcp://127.0.0.1:*"] * 2, fleet_secret=FleetSecretFile(SECRET))
        for _ in range(2)
    ]
    yield made
    for each in made:
        each.close()


@pytest.fixture
async def replicas(config, write_config, model_entry, start_replica, publishers, tmp_path):
    """Two replicas with block events, of a model with the other package's policy."""
    found = [await start_replica() for _ in publishers]
    entry = model_entry("m", *found)
    for fields, each in zip(entry["replicas"], publishers, strict=True):
        fields |= {"kv_events": each.endpoint, "kv_replay": each.replay_endpoint}
    (tmp_path / "seen").mkdir()
    options = {"folder": str(tmp_path / "seen")}
    write_config(config, [entry | {"policy": "most_blocks", "policy_options": options}])
    return found


def stored(*names: int) -> BlockStored:
    blocks = [name.to_bytes(16, "little") for name in names]
    return BlockStored([*blocks], None, list(range(16 * len(blocks))), 16)


async def chosen(url: str, replicas) -> list[int]:
    """Where requests go, each over a connection of its own, so that all workers get some."""
    before = [len(replica.requests) for replica in replicas]
    for _ in range(24):
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            answer = await http.post(f"{url}/v1/completions", json={"model": "m", "prompt": "a"})
            assert answer.status_code == 200, answer.text
    return [len(each.requests) - count for each, count in zip(replicas, before, strict=True)]


async def test_it_routes_in_one_process(
    config, replicas, publishers, start_process, site, tmp_path, client
) -> None:
    publishers[1].publish([stored(1, 2)])
    router = await start_process(config, path=site)
    seen = tmp_path / "seen" / str(router.process.pid)
    await until(lambda: seen.exists() and seen.read_text() == "r1=2")
    assert await chosen(router.url, replicas) == [0, 24]
    publishers[0].publish([stored(1, 2, 3)])
    await until(lambda: seen.read_text() == "r0=3 r1=2")
    assert await chosen(router.url, replicas) == [24, 0]
    fleet = (await client.get(f"{router.admin_url}/debug/fleet")).json()
    assert fleet["models"][0]["policy"] == "most_blocks"
    body = {"policy": "most_blocks", "options": {"folder": str(tmp_path / "seen"), "least": True}}
    headers = {"x-kvasir-fleet-secret": SECRET}
    answer = await client.put(f"{router.admin_url}/policy/m", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    await until(lambda: seen.read_text() == "r0=3 r1=2")
    assert await chosen(router.url, replicas) == [0, 24]


async def test_every_worker_is_told_of_blocks_also_one_that_comes_late(
    config, replicas, publishers, start_workers, site, tmp_path
) -> None:
    publishers[1].publish([stored(1, 2)])
    router = await start_workers(config, 2, path=site)

    def seen() -> Counter[str]:
        """What the sinks of the processes that live were told."""
        files = [tmp_path / "seen" / str(pid) for pid in router.pids().values()]
        return Counter(file.read_text() if file.exists() else "" for file in files)

    await until(lambda: seen() == {"r1=2": 3})
    assert await chosen(router.url, replicas) == [0, 24]
    publishers[0].publish([stored(1, 2, 3)])
    await until(lambda: seen() == {"r0=3 r1=2": 3})
    assert await chosen(router.url, replicas) == [24, 0]
    publishers[0].publish([BlockRemoved([(1).to_bytes(16, "little")])])
    for name in ("worker0", "index"):  # the new one has to be told what was before it
        pid = router.send(name, signal.SIGKILL)
        await router.replaced(name, pid)
        await until(lambda: seen() == {"r0=2 r1=2": 3})
    publishers[0].publish([AllBlocksCleared()])
    await until(lambda: seen() == {"r1=2": 3})
    assert await chosen(router.url, replicas) == [0, 24]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["most_blocks.foldr=x"], "policy most_blocks: folder is missing"),
        (
            ["most_blocks.folder=x", "--policy-option", "most_blocks.least=7"],
            "least must be a valid",
        ),
    ],
)
async def test_its_options_are_checked(config, start_process, site, options, words) -> None:
    config.write_text("models: []")
    options = ["--policy", "most_blocks", "--policy-option", *options]
    router = await start_process(config, *options, path=site, wait=False)
    code, _, err = await router.ended()
    assert code == 2
    assert words in " ".join(err.decode().replace("│", " ").split())


async def test_a_package_that_does_not_import_is_named(config, start_process, tmp_path) -> None:
    config.write_text("models: []")
    points = {"kvasir.router_policies": {"broken": "broken_one:Policy"}}
    install_package(tmp_path / "site", "broken_one", "import no_such_module", points)
    router = await start_process(config, "--policy", "broken", path=tmp_path / "site", wait=False)
    code, _, err = await router.ended()
    assert code == 2
    said = " ".join(err.decode().replace("│", " ").split())
    assert "policy 'broken' of package broken_one cannot be loaded: No module named" in said
