from __future__ import annotations

from harness.traffic.outcomes import Outcome, Step, failures, table


def test_a_step_counts_what_ended_in_it() -> None:
    good = Outcome("unary", "a", 1.0, 1.5, None)
    slow = Outcome("stream", "a", 0.0, 9.0, None)
    bad = Outcome("stream", "b", 2.0, 3.0, "status 503: busy")
    step = Step("drain", 0.0, 10.0, [good, good, slow, bad])
    for seconds in (0.1, 1.25, 0.2):
        step.silence(seconds)
    assert (step.count("unary"), step.count("stream")) == (2, 1)
    row = table([step]).splitlines()[-1]
    assert row == "| drain | 10.0 | 2 | 1 | 1 | 0.5 | 1.25 |"
    assert [failure["step"] for failure in failures([step])] == ["drain"]
