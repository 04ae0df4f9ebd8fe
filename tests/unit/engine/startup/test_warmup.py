from __future__ import annotations

import numpy as np
import pytest

from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.settings import make_settings
from kvasir_engine.startup.torch_build import build_torch_runner
from kvasir_engine.startup.warmup import largest_step, run_warmup_steps

TINY = resolve_model("builtin://kvasir-tiny")


@pytest.mark.parametrize(("tokens", "rows"), [(64, 4), (7, 16), (64, 64), (4096, 3)])
def test_the_largest_step_has_all_tokens_in_as_many_rows_as_can_be(tokens: int, rows: int) -> None:
    groups = (KVGroupSpec((0,), 16), KVGroupSpec((1,), 16, 32))
    plan = largest_step(tokens, rows, 1024, groups)
    used = min(tokens, rows)
    assert len(plan.rows) == len(plan.sample_rows) == len(plan.inits) == used
    assert plan.num_new.tolist() == [min(1023, tokens // used)] * used
    tables = [init.block_tables[0] for init in plan.inits]
    blocks = np.concatenate(tables)
    assert len(set(blocks.tolist())) == len(blocks)
    assert all(len(t) * 16 >= n for t, n in zip(tables, plan.num_new, strict=True))
    assert 0 not in blocks


class Seen:
    """A runner that notes the plans it is given."""

    def __init__(self, runner) -> None:
        self.runner = runner
        self.plans = []

    def __getattr__(self, name):
        return getattr(self.runner, name)

    def forward(self, plan) -> None:
        self.plans.append(plan)
        self.runner.forward(plan)


@pytest.fixture
def seen() -> Seen:
    settings = make_settings(
        str(TINY), device="cpu", max_num_seqs=40, num_blocks=50, max_model_len=64
    )
    return Seen(build_torch_runner(settings, TINY).runner)


def test_prompts_and_decodes_beside_a_prompt(seen) -> None:
    run_warmup_steps(seen, 40, 50)
    assert [(plan.num_decodes, len(plan.rows)) for plan in seen.plans] == [
        *[(0, 2), (1, 2)] * 2, *[(0, 33), (32, 33)] * 2,
    ]  # fmt: skip
    for plan in seen.plans:
        assert (plan.starts + plan.num_new <= seen.groups[0].block_size).all()
        assert max(int(table.max()) for init in plan.inits for table in init.block_tables) < 50


@pytest.mark.parametrize(("rows", "blocks", "steps"), [(1, 50, 0), (2, 50, 4), (40, 20, 4)])
def test_no_more_than_there_is_room_for(seen, rows: int, blocks: int, steps: int) -> None:
    run_warmup_steps(seen, rows, blocks)
    assert len(seen.plans) == steps
