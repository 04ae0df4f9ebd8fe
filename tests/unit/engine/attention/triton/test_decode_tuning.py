"""How decodes are launched: by their number, within the memory of a multiprocessor."""

from __future__ import annotations

import pytest


def test_few_and_very_many_programs_are_small() -> None:
    from kvasir_engine.attention.triton.decode_tuning import tuning_for

    for small, large in ((64, 8), (192, 384), (2048, 1024)):
        assert tuning_for(small, 128, 132).keys < tuning_for(large, 128, 132).keys
    # Whole rounds of the programs, two on each multiprocessor.
    assert tuning_for(512, 128, 132).stages < tuning_for(640, 128, 132).stages
    # Registers hold a row's results, as long as heads are no larger.
    assert tuning_for(2048, 256, 132) == tuning_for(8, 256, 132)


def test_small_programs_for_what_many_decodes_do_not_share() -> None:
    from kvasir_engine.attention.triton.decode_tuning import suffix_tuning_for

    assert suffix_tuning_for(2048, 128, 132).warps < suffix_tuning_for(512, 128, 132).warps
    assert suffix_tuning_for(2048, 256, 132) == suffix_tuning_for(8, 256, 132)


@pytest.mark.parametrize("multiprocessors", [58, 108, 132, 170])
def test_rounds_of_programs_count_whatever_the_gpu(multiprocessors: int) -> None:
    from kvasir_engine.attention.triton.decode_tuning import suffix_tuning_for, tuning_for

    def filled(share: float) -> int:
        return int(share * multiprocessors)

    for share in (0.1, 1.0, 2.0, 3.0, 3.9, 10, 20):
        measured = tuning_for(int(share * 132), 128, 132)
        assert tuning_for(filled(share), 128, multiprocessors) == measured
    # Two whole rounds of two programs each.
    last = tuning_for(4 * multiprocessors, 128, multiprocessors)
    assert last.stages < tuning_for(4 * multiprocessors + 1, 128, multiprocessors).stages
    assert suffix_tuning_for(filled(16), 128, multiprocessors).warps == 1
    assert suffix_tuning_for(filled(3), 128, multiprocessors).warps > 1


def test_tiles_of_keys_fit_the_shared_memory() -> None:
    from kvasir_engine.attention.triton.decode_tuning import DecodeTuning

    tuning = DecodeTuning(keys=128, warps=4, stages=3)
    assert tuning.fitted(128, 2, 200_000) == tuning
    assert tuning.fitted(128, 4, 200_000) == DecodeTuning(keys=64, warps=4, stages=2)
    assert tuning.fitted(128, 2, 140_000) == DecodeTuning(keys=128, warps=4, stages=2)


@pytest.mark.parametrize(
    ("entries", "longest", "parts"),
    [(1, 100_000, 64), (8, 100_000, 8), (8, 300, 2), (200, 9000, 1)],
)
def test_as_many_parts_as_fill_the_gpu(entries: int, longest: int, parts: int) -> None:
    from kvasir_engine.attention.triton.decode_tuning import DecodeTuning, num_parts

    assert num_parts(entries, 8, longest, 132, DecodeTuning()) == parts


def test_as_many_parts_as_were_measured_to_be_best_but_none_of_few_keys() -> None:
    from kvasir_engine.attention.triton.decode_tuning import DecodeTuning, num_parts

    tuning = DecodeTuning(parts=6)
    assert num_parts(24, 8, 100_000, 132, tuning) == 6
    assert num_parts(24, 8, 400, 132, tuning) == 3
    assert num_parts(24, 8, 5, 132, tuning) == 1
