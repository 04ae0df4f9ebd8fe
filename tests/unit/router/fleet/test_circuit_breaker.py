"""The circuit breaker's states."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir_router.fleet.circuit_breaker import BreakerState, CircuitBreaker


def opened(threshold: int = 3) -> CircuitBreaker:
    breaker = CircuitBreaker(threshold, pause=1.0, max_pause=4.0)
    for _ in range(threshold):
        breaker.failed()
    return breaker


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = CircuitBreaker(threshold=3, pause=1.0)
    assert breaker.failed() is None
    assert breaker.failed() is None
    breaker.succeeded()
    assert breaker.failed() is None
    assert breaker.failed() is None
    assert breaker.allows
    assert breaker.failed() == 1.0
    assert not breaker.allows


def test_one_trial_after_the_pause() -> None:
    breaker = opened()
    breaker.retry()
    assert breaker.allows
    breaker.started()
    assert not breaker.allows
    breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allows


def test_the_pause_doubles_with_each_failed_trial_up_to_its_bound() -> None:
    breaker = opened()
    pauses = []
    for _ in range(4):
        breaker.retry()
        breaker.started()
        pauses.append(breaker.failed())
    assert pauses == [2.0, 4.0, 4.0, 4.0]
    breaker.retry()
    breaker.succeeded()
    assert [breaker.failed() for _ in range(3)] == [None, None, 1.0]


def test_an_abandoned_trial_can_be_made_again() -> None:
    breaker = opened()
    breaker.retry()
    breaker.started()
    breaker.abandoned()
    assert breaker.allows


def test_a_new_process_begins_with_a_clean_slate() -> None:
    breaker = opened()
    breaker.reset()
    assert breaker.allows
    breaker.retry()  # of the pause before
    assert breaker.state is BreakerState.CLOSED
    assert [breaker.failed() for _ in range(3)] == [None, None, 1.0]


class BreakerMachine(RuleBasedStateMachine):
    """Any order of events: it opens only by failures, and always comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker(threshold=2, pause=1.0, max_pause=8.0)
        self.pending = False

    @rule(data=st.sampled_from(["succeeded", "abandoned"]))
    def ended(self, data: str) -> None:
        getattr(self.breaker, data)()

    @precondition(lambda self: self.breaker.allows)
    @rule()
    def started(self) -> None:
        self.breaker.started()

    @rule()
    def failed(self) -> None:
        pause = self.breaker.failed()
        if pause is not None:
            assert not self.pending
            assert 1.0 <= pause <= 8.0
            self.pending = True

    @precondition(lambda self: self.pending)
    @rule()
    def retry(self) -> None:
        self.pending = False
        self.breaker.retry()
        assert self.breaker.allows

    @invariant()
    def open_means_a_retry_is_coming(self) -> None:
        assert self.pending == (self.breaker.state is BreakerState.OPEN)


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=100, deadline=None)
