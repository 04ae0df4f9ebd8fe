"""Settings reach the parts of a core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvasir.wire.kv_events import BlockStored
from kvasir_engine.core import build
from kvasir_engine.core.build import Core, build_core
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.settings import SettingsError, make_settings
from kvasir_engine.startup.built_runner import BuiltRunner
from kvasir_engine.step_plan import StepPlan


class Watcher:
    """Remember how many steps were in flight at once."""

    def __init__(self) -> None:
        self.in_flight = self.most = 0

    def launched(self, plan: StepPlan) -> None:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)

    def retired(self, plan: StepPlan) -> None:
        self.in_flight -= 1


@pytest.fixture
def built(tiny_dir: Path):
    """built(watcher=..., listeners=..., **settings): a simulated core."""

    def build(watcher: Any = None, listeners: Any = None, **settings: Any) -> Core:
        options = {"device": "sim", "num_blocks": 64, **settings}
        made = make_settings(str(tiny_dir), **options)
        return build_core(made, tiny_dir, watcher=watcher, listeners=listeners)

    return build


def run(core: Core, handle: int) -> int:
    """Run one request to its end: its cached prompt tokens."""
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    core.scheduler.add(EngineRequest("r", handle, list(range(40)), params))
    cached = []
    while not core.loop.idle:
        news = core.loop.step()
        deltas = [delta for _, delta in news.deltas] if news is not None else []
        cached += [d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None]
    core.loop.check_idle()
    (count,) = cached
    return int(count)


@pytest.mark.parametrize(("caching", "cached"), [(True, 32), (False, 0)])
def test_prefix_caching_can_be_turned_off(built, caching: bool, cached: int) -> None:
    core = built(enable_prefix_caching=caching)
    assert [run(core, 0), run(core, 1)] == [0, cached]


@pytest.mark.parametrize(("overlap", "most"), [(True, 2), (False, 1)])
def test_overlap_can_be_turned_off(built, overlap: bool, most: int) -> None:
    watcher = Watcher()
    run(built(watcher=watcher, overlap=overlap), 0)
    assert (watcher.most, watcher.in_flight) == (most, 0)


def drawn_seed(core: Core) -> int:
    """Return the seed of a request that brings none."""
    core.scheduler.add(EngineRequest("r", 0, [1, 2, 3], SamplingParams(max_tokens=1)))
    seeds = []
    while not core.loop.idle:
        news = core.loop.step()
        deltas = [delta for _, delta in news.deltas] if news is not None else []
        seeds += [delta.seed for delta in deltas if delta.seed is not None]
    (seed,) = seeds
    return int(seed)


def test_replicas_draw_apart_unless_they_have_the_same_seed(built) -> None:
    assert drawn_seed(built()) != drawn_seed(built())
    assert drawn_seed(built(seed=5)) == drawn_seed(built(seed=5))


def test_each_groups_pool_gets_its_listener(built) -> None:
    recorder = EventRecorder()
    asked: list[int] = []

    def listeners(groups: Sequence[KVGroupSpec]) -> list[Any]:
        asked.append(len(groups))
        return list(recorder.listeners(groups))

    run(built(listeners=listeners), 0)
    assert asked == [1]
    (first, *_) = recorder.drain_events()
    assert isinstance(first, BlockStored)
    assert first.token_ids[:32] == list(range(32))


def test_limits_are_the_schedulers(built) -> None:
    scheduler = built(max_num_seqs=3, max_num_batched_tokens=77, max_model_len=100).scheduler
    assert scheduler.rows.num_rows == 3
    assert scheduler.max_model_len == 100
    assert scheduler.settings.max_num_batched_tokens == 77


def test_an_impossible_setting_is_the_users_to_mend(built) -> None:
    with pytest.raises(SettingsError, match="--max-model-len 9999 is longer"):
        built(max_model_len=9999)


class Compiler:
    """Counts how often it is told to load its library."""

    def __init__(self) -> None:
        self.warmed = 0

    def warm_up(self) -> None:
        self.warmed += 1


@pytest.mark.parametrize(
    ("memory", "warmed"), [({"weights": 1}, 1), ({}, 0)], ids=["on a GPU", "on a CPU"]
)
def test_a_start_on_a_gpu_loads_the_grammars_library(
    monkeypatch: pytest.MonkeyPatch, tiny_dir: Path, memory: dict[str, int], warmed: int
) -> None:
    made = Compiler()
    monkeypatch.setattr(build, "make_compiler", lambda *_, **__: made)
    runner = BuiltRunner(None, (), [1], 64, 1792, memory=memory)  # type: ignore[arg-type]
    settings = make_settings(str(tiny_dir), device="auto")
    assert build._make_grammars(settings, tiny_dir, runner) is made  # type: ignore[comparison-overlap]
    assert made.warmed == warmed


def test_without_text_there_are_no_grammars(built: Any) -> None:
    assert built().grammars is None, "a simulated device keeps to none"
