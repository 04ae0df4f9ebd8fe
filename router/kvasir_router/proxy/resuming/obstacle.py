"""Obstacles to going on with a broken stream."""

from enum import StrEnum


class Obstacle(StrEnum):
    """Obstacle to resuming a stream: a metric's label."""

    OFF = "off"
    ROUTE = "route"
    """Neither a completion, nor a response, nor a message."""
    CHOICES = "several_choices"
    LOGPROBS = "logprobs"
    """A response that repeats the log-probabilities of its tokens at its end."""
    RESUMED = "resumed_by_client"
    TOO_LARGE = "too_large"
    """The transcript was not kept to the end."""
    CONTRACT = "no_contract"
    """The engine does not say what a resume needs."""
    MOVES = "moves_spent"
    REPLICA = "no_replica"
    """No other one of the same model may take it."""
    REFUSED = "refused"
    """The other replica did not answer with a stream."""
    NOTHING_LEFT = "completed"
    """The client has it all but the word that it is over."""


class ObstacleError(Exception):
    """The stream cannot be resumed."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.value)
        self.obstacle = obstacle
