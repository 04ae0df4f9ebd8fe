"""Interface through which the attempts at replicas report to the request."""

from abc import abstractmethod

from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.client_response import AnswerObserver
from kvasir_router.proxy.resuming.obstacle import Obstacle
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.wire.responses import Answer
from kvasir_router.wire.upstream import ResponseHead


class AnswerTarget(AnswerObserver):
    """Receiver of the answer that the attempts find, and of every end without one."""

    @property
    @abstractmethod
    def has_answer(self) -> bool:
        """True while an answer is on its way to the client."""

    @property
    @abstractmethod
    def is_blank(self) -> bool:
        """True while the client has nothing of an answer."""

    @property
    @abstractmethod
    def transcript(self) -> Transcript | None:
        """Answer that the client of a stream has so far, if it is kept."""

    def asked(self, replica: Replica) -> None:
        """Take note of the replica that is asked now."""

    def pass_on(self, attempt: UpstreamRequest, head: ResponseHead) -> None:
        """Pass on an answer as it comes."""

    def pass_whole(self, attempt: UpstreamRequest, head: ResponseHead, body: bytes) -> None:
        """Pass on a whole answer."""

    @property
    @abstractmethod
    def may_fall_back(self) -> bool:
        """True if another model may answer in the place of this one."""

    def fall_back(self, reason: str) -> bool:
        """Let another model answer, if one may, and return whether that is so: then nothing here
        is called again. `reason`: one of a few words, for metrics."""
        return False

    def withdraw(self) -> None:
        """Take back an answer of which the client has nothing."""

    def wait(self) -> None:
        """Wait for a replica that may take the request."""

    def finish_stream(self) -> None:
        """End a stream that lacks nothing but its last word."""

    def lose(self, obstacle: Obstacle, last_word: Answer | None = None) -> None:
        """End an answer that has begun and cannot be resumed, with this error or a general one."""

    def end_as_poison(self) -> None:
        """End a request with which two engines have ended."""

    def fail(self, error: Answer) -> None:
        """End the request without a replica's whole answer."""

    def defect(self, error: Exception) -> None:
        """End the request, for which the router's own code raised."""
