from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
PROMPT = list(range(1, 22))


def first_stop(engine: Any, prompt: list[int], at: int, **params: Any) -> tuple[int, int]:
    """A token that the next request first samples near position `at`, and where."""
    tokens = engine.lone_tokens(prompt, max_tokens=30, **params)
    index = next(i for i in range(at, 30) if tokens[i] not in tokens[:i])
    return tokens[index], index


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_a_length_limit_launches_no_further_step(
    engine_model: Make, overlap: bool, max_tokens: int
) -> None:
    engine = engine_model(overlap=overlap)
    engine.add(PROMPT[:6], max_tokens=max_tokens)
    engine.run()
    assert engine.counters.steps == max_tokens
    assert engine.counters.computed_tokens == 6 + max_tokens - 1


@pytest.mark.parametrize(("overlap", "extra"), [(True, 1), (False, 0)])
def test_a_stop_id_is_found_one_step_late_with_overlap(
    engine_model: Make, overlap: bool, extra: int
) -> None:
    engine = engine_model(overlap=overlap)
    stop, index = first_stop(engine, PROMPT[:6], 4)
    handle = engine.add(PROMPT[:6], max_tokens=30, stop_token_ids=[stop])
    engine.run()
    assert engine.heard[handle].stop_reason == stop
    assert engine.counters.steps == index + 1 + extra


def test_eos_has_no_stop_reason_and_can_be_ignored(engine_model: Make) -> None:
    engine = engine_model()
    eos, index = first_stop(engine, PROMPT[:6], 3)
    handle = engine.add(PROMPT[:6], max_tokens=30, eos=[eos])
    engine.run()
    assert (engine.heard[handle].stop_reason, len(engine.heard[handle].tokens)) == (None, index + 1)
    ignoring = engine.add(PROMPT[:6], max_tokens=30, eos=[eos], ignore_eos=True, seed=1000)
    engine.run()
    assert len(engine.heard[ignoring].tokens) == 30


def test_more_stop_ids_than_the_table_holds(engine_model: Make) -> None:
    engine = engine_model()
    stop, index = first_stop(engine, PROMPT[:6], 3)
    never = list(range(100, 109))
    handle = engine.add(PROMPT[:6], max_tokens=30, stop_token_ids=[*never, stop])
    engine.run()
    assert len(engine.heard[handle].tokens) == index + 1


def test_a_full_prompt_hit_recomputes_the_last_token(engine_model: Make) -> None:
    engine = engine_model()
    for length in (16, 17):
        engine.add(PROMPT[:length], max_tokens=2)
        engine.run()
        engine.add(PROMPT[:length], max_tokens=1)
        engine.run()
    plans = [plan for plan in engine.device.plans if plan.inits]
    assert [int(plan.num_new[-1]) for plan in plans] == [16, 4, 1, 1]
    assert [heard.num_cached for heard in engine.heard.values()] == [0, 12, 16, 16]
    assert engine.counters.prefix_hits == 44
    assert engine.counters.prefix_queries == 16 + 16 + 17 + 17


def test_prompt_logprobs_read_no_cache_but_fill_it(engine_model: Make) -> None:
    engine = engine_model()
    engine.add(PROMPT[:17], max_tokens=2)
    engine.run()
    reading = engine.add(PROMPT[:17], max_tokens=2, prompt_logprobs=1)
    engine.run()
    assert engine.heard[reading].num_cached == 0
    assert engine.heard[reading].prompt_positions == list(range(16))
    other = [20, *PROMPT[:17]]
    engine.add(other, max_tokens=2, prompt_logprobs=1)
    engine.run()
    filled = engine.add(other, max_tokens=2)
    engine.run()
    assert engine.heard[filled].num_cached == 16


@pytest.mark.parametrize("chunk", [0, 5])
def test_prompt_logprobs_survive_preemption_once_each(engine_model: Make, chunk: int) -> None:
    engine = engine_model(num_blocks=(17,), budget=8, chunk=chunk, rows=3)
    engine.add([5] * 30, max_tokens=30)
    engine.add(PROMPT, max_tokens=30, prompt_logprobs=2, logprobs=1)
    engine.add([6, *PROMPT], max_tokens=20, prompt_logprobs=0)
    lead = engine.scheduler.by_handle[1]
    engine.run()
    assert lead.num_preemptions > 0
    assert engine.heard[1].prompt_positions == list(range(20))


def test_prompt_logprobs_of_a_single_token(engine_model: Make) -> None:
    engine = engine_model()
    handle = engine.add([3], max_tokens=3, prompt_logprobs=2)
    engine.run()
    assert engine.heard[handle].prompt_positions == []


@pytest.mark.parametrize("overlap", [True, False])
def test_a_preempted_request_keeps_its_place_and_its_token_in_flight(
    engine_model: Make, overlap: bool
) -> None:
    engine = engine_model(num_blocks=(17,), rows=2, overlap=overlap)
    engine.add([5] * 30, max_tokens=30)
    victim = engine.add([6] * 25, max_tokens=30)
    later = engine.add([7] * 4, max_tokens=4)
    sequence = engine.scheduler.by_handle[victim]
    while not sequence.num_preemptions:
        before = len(engine.heard[victim].tokens)
        assert engine.heard[victim].going
        engine.step()
    in_flight = int(overlap)
    assert len(engine.heard[victim].tokens) == before + in_flight
    assert engine.scheduler.waiting.peek().handle == victim, "before what came later"
    engine.run()
    assert len(engine.heard[victim].tokens) == 30
    assert len(engine.heard[later].tokens) == 4


def test_the_token_in_flight_of_a_preempted_request_can_be_its_last(engine_model: Make) -> None:
    def preempted_with(stop: list[int]) -> tuple[Any, int]:
        engine = engine_model(num_blocks=(17,), rows=2)
        engine.add([5] * 30, max_tokens=30)
        victim = engine.add([6] * 25, max_tokens=30, stop_token_ids=stop)
        sequence = engine.scheduler.by_handle[victim]
        engine.step_until(lambda: not engine.heard[victim].going or sequence.num_preemptions)
        assert sequence.num_preemptions == 1
        return engine, victim

    engine, victim = preempted_with([])
    token = engine.heard[victim].tokens[-1]
    count = len(engine.heard[victim].tokens)
    assert token not in engine.heard[victim].tokens[:-1]
    engine, victim = preempted_with([token])
    assert engine.heard[victim].stop_reason == token
    assert len(engine.heard[victim].tokens) == count
    assert len(engine.scheduler.waiting) == 0, "it does not wait to run again"
    engine.run()


def test_a_preempted_request_ends_while_its_last_step_is_in_flight(engine_model: Make) -> None:
    engine = engine_model(num_blocks=(17,), rows=2)
    engine.add([5] * 30, max_tokens=30)
    victim = engine.add([6] * 25, max_tokens=30)
    sequence = engine.scheduler.by_handle[victim]
    launch = engine.device.forward

    def ended_at_launch(plan: Any) -> None:
        launch(plan)
        if sequence.preempted:
            engine.end(victim)

    engine.device.forward = ended_at_launch
    engine.run()
    assert engine.heard[victim].ended_by_client
    assert sequence.num_preemptions == 1


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_who_is_preempted(engine_model: Make, policy: str) -> None:
    engine = engine_model(num_blocks=(17,), rows=3, policy=policy)
    low = engine.add([5] * 18, max_tokens=30, priority=5)
    high = engine.add([6] * 18, max_tokens=30, priority=-1)
    sequences = {h: engine.scheduler.by_handle[h] for h in (low, high)}
    engine.run()
    preempted = [h for h, s in sequences.items() if s.num_preemptions]
    assert preempted == [high if policy == "fcfs" else low]


def test_priority_is_served_first(engine_model: Make) -> None:
    engine = engine_model(rows=1, policy="priority")
    order = []
    for priority in (3, 1, 2, 1):
        engine.add([5 + priority] * 4, max_tokens=2, priority=priority)
    while not engine.loop.idle:
        engine.step()
        order += [h for h, x in engine.heard.items() if x.finish and h not in order]
    assert order == [1, 3, 2, 0]


def test_a_long_prompt_never_blocks_decodes(engine_model: Make) -> None:
    engine = engine_model(rows=4, budget=8, chunk=5, num_blocks=(40,))
    handle = engine.add([5] * 3, max_tokens=20)
    engine.step()
    engine.add([6] * 40, max_tokens=2)
    while engine.heard[handle].going:
        engine.step()
    plans = engine.device.plans[1:20]
    assert all(plan.num_decodes >= 1 for plan in plans)
    assert max(int(plan.num_new[plan.num_decodes :].max(initial=0)) for plan in plans) == 5
    engine.run()
    assert engine.counters.chunked_prefills == 7


def test_a_step_admits_as_much_as_the_budget_holds(engine_model: Make) -> None:
    engine = engine_model(rows=4, budget=10, num_blocks=(40,))
    for start in range(3):
        engine.add([5 + start] * 4, max_tokens=2)
    engine.step()
    assert engine.device.plans[0].num_new.tolist() == [4, 4, 2]
    engine.run()


def test_a_running_request_short_of_blocks_is_not_overtaken(engine_model: Make) -> None:
    """Four samples wait for blocks to fork while small requests keep arriving."""
    engine = engine_model(num_blocks=(14,), max_model_len=40, rows=8, budget=8, chunk=4)
    small = [engine.add([5 + i] * 3, max_tokens=5) for i in range(3)]
    engine.step()
    forking = engine.add(PROMPT[:15], n=4, max_tokens=2)
    for arrival in range(60):
        if not engine.heard[forking].going:
            break
        small.append(engine.add([3 + arrival % 20] * 3, max_tokens=5))
        engine.step()
    assert not engine.heard[forking].going
    engine.run()


def test_admission_leaves_a_margin_while_something_runs(engine_model: Make) -> None:
    engine = engine_model(num_blocks=(202,), max_model_len=900, rows=4, budget=900)
    engine.add([5] * 4, max_tokens=4)
    engine.step()
    # 201 blocks, 2 held: an arrival gets 197 of the other 199.
    engine.add([6] * (198 * 4 - 1), max_tokens=2)
    engine.step()
    assert len(engine.scheduler.waiting) == 1
    engine.end(1)
    engine.add([6] * (197 * 4 - 1), max_tokens=2)
    engine.step()
    assert len(engine.scheduler.waiting) == 0
    engine.run()


def test_resumed_output_counts_as_output(engine_model: Make) -> None:
    engine = engine_model()
    whole = engine.lone_tokens(PROMPT[:9], max_tokens=12, sample_index=2)
    for taken in range(len(whole)):
        engine.add(
            PROMPT[:9], max_tokens=12, resume=whole[:taken], sample_index=2, seed=1000, min_tokens=3
        )
    engine.run()
    for taken, heard in enumerate(engine.heard.values()):
        assert heard.tokens == whole[taken:]
        assert heard.num_cached <= 9
    rows = [init.num_prompt for plan in engine.device.plans for init in plan.inits]
    assert set(rows) == {9}


def test_cached_tokens_of_a_resumed_request_are_the_prompts(engine_model: Make) -> None:
    engine = engine_model()
    whole = engine.lone_tokens(PROMPT[:9], max_tokens=20)
    engine.add(PROMPT[:9], max_tokens=20)
    engine.run()
    resumed = engine.add(PROMPT[:9], max_tokens=20, resume=whole[:15], seed=1000)
    engine.run()
    assert engine.heard[resumed].num_cached == 9


def test_window_blocks_return_while_the_sequence_runs(engine_model: Make) -> None:
    engine = engine_model(windows=(None, 6), num_blocks=(17, 17), rows=1)
    engine.add(PROMPT[:8], max_tokens=50)
    most = 0
    while not engine.loop.idle:
        engine.step()
        most = max(most, engine.kv.pools[1].num_referenced)
    assert most <= 4
    engine.run()


def test_a_prompt_longer_than_a_window_groups_pool_runs(engine_model: Make) -> None:
    engine = engine_model(windows=(None, 6), num_blocks=(17, 7), budget=8, rows=2)
    handle = engine.add([1 + i % 20 for i in range(50)], max_tokens=10)
    engine.run()
    assert len(engine.heard[handle].tokens) == 10
    assert engine.counters.preemptions == 0


@pytest.mark.parametrize("windows", [(6,), (None, 6), (None, 6, 24)])
def test_prefix_hits_hold_in_every_group(
    engine_model: Make, windows: tuple[int | None, ...]
) -> None:
    engine = engine_model(windows=windows, num_blocks=(40,) * len(windows))
    engine.add(PROMPT, max_tokens=1)
    engine.run()
    hit = engine.add([*PROMPT, 9, 9], max_tokens=6)
    engine.run()
    assert engine.heard[hit].num_cached == 20


def test_a_hit_on_blocks_whose_writer_was_ended(engine_model: Make) -> None:
    engine = engine_model()
    writer = engine.add(PROMPT, max_tokens=10)
    engine.step()
    engine.end(writer)
    reader = engine.add(PROMPT, max_tokens=3)
    engine.run()
    assert engine.heard[reader].num_cached == 20


def test_a_salt_keeps_prompts_apart(engine_model: Make) -> None:
    engine = engine_model()
    cached = {}
    for salt in ("a", "b", "a"):
        handle = engine.add(PROMPT, max_tokens=2, salt=salt)
        engine.run()
        cached[handle] = engine.heard[handle].num_cached
    assert list(cached.values()) == [0, 0, 20]


def test_unseeded_requests_draw_different_seeds_from_the_engines(engine_model: Make) -> None:
    from kvasir_engine.request import EngineRequest
    from kvasir_engine.sampling_params import SamplingParams

    def seeds() -> list[int]:
        scheduler = engine_model().scheduler
        for handle in range(3):
            scheduler.add(EngineRequest("r", handle, [1], SamplingParams()))
        return [scheduler.by_handle[handle].sampling.seed for handle in range(3)]

    assert len(set(seeds())) == 3
    assert seeds() == seeds(), "so that every rank and every restart draws the same"


def test_ending_what_is_unknown_or_over_does_nothing(engine_model: Make) -> None:
    engine = engine_model()
    handle = engine.add(PROMPT, max_tokens=2)
    engine.scheduler.end(99)
    engine.run()
    engine.scheduler.end(handle)
    engine.run()


def test_load_is_what_is_left_to_prefill(engine_model: Make) -> None:
    engine = engine_model(rows=1, budget=8)
    engine.add(PROMPT[:20], max_tokens=4)
    engine.add(PROMPT[:5], max_tokens=4)
    assert engine.scheduler.prefill_backlog() == 25
    assert engine.scheduler.num_running == 0
    engine.step()
    assert engine.scheduler.prefill_backlog() == 20 - 8 - 1 + 5
    assert engine.scheduler.num_running == 1
    engine.run()


def test_a_blocked_requests_prefix_is_not_looked_up_every_step(engine_model: Make) -> None:
    engine = engine_model(rows=4, num_blocks=(18,))
    engine.add([5] * 16, max_tokens=40)
    engine.step()
    waiting = engine.add([6] * 50, max_tokens=2)
    looked_up: list[int] = []
    find = engine.kv.find_prefix

    def counted(*args: Any) -> Any:
        looked_up.append(engine.counters.steps)
        return find(*args)

    engine.kv.find_prefix = counted
    engine.step_until(lambda: len(engine.scheduler.waiting) == 0)
    assert engine.counters.steps > 35
    assert looked_up[:3] == [1, 17, 33]
    assert len(looked_up) <= 5
    engine.run()
    assert len(engine.heard[waiting].tokens) == 2
