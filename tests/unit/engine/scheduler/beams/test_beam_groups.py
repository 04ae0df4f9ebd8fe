from __future__ import annotations

import numpy as np

from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.beams.beam_groups import make_group
from kvasir_engine.scheduler.sequence import make_sequences


def test_a_group_takes_the_siblings_as_equals_and_searches_within_the_limit() -> None:
    params = SamplingParams(n=3, use_beam_search=True, max_tokens=50, stop_token_ids=[4])
    request = EngineRequest("r", 0, [1, 2, 3], params, eos_token_ids=[9])
    lead = make_sequences(request, order=0, seed=0, max_model_len=16)
    group = make_group(lead)
    assert group.members[0] is group.lead is lead
    assert [member.handle for member in group.members] == [0, 1, 2]
    assert all(member.lead is None and member.beam_group is group for member in group.members)
    assert (lead.siblings, lead.rows_needed, lead.is_special) == ([], 3, True)
    assert group.search.max_new_tokens == 13
    assert group.search.stop_ids == {4, 9}
    assert group.search.candidates == 9


def test_a_group_is_complete_when_every_running_beam_has_offered() -> None:
    params = SamplingParams(n=2, use_beam_search=True, max_tokens=5)
    request = EngineRequest("r", 0, [1], params)
    group = make_group(make_sequences(request, order=0, seed=0, max_model_len=16))
    offer = (np.array([5, 6], np.int32), np.array([-1.0, -2.0], np.float32))
    complete = [group.complete]
    group.offered[0] = offer
    complete.append(group.complete)  # one beam runs at first
    group.search.advance([offer[0]], [offer[1]])
    assert len(group.search.running) == 2
    complete.append(group.complete)
    assert complete == [False, True, False]
