"""Requests that wait for their grammars, ahead of the scheduler's queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass

from kvasir_engine.grammar.compiler import Compilation, CompilerBusyError, GrammarCompiler
from kvasir_engine.grammar.constraint import Constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.matcher import Grammar
from kvasir_engine.messages import Rejected
from kvasir_engine.request import EngineRequest

log = logging.getLogger(__name__)

PARAM = "structured_outputs"


@dataclass(slots=True, eq=False)
class _Waiting:
    request: EngineRequest
    compilation: Compilation


class GrammarRequests:
    """Compile what requests ask for; `wake` is called on any thread once one may go on."""

    def __init__(self, compiler: GrammarCompiler | None, wake: Callable[[], None]) -> None:
        """Without a compiler every request with a constraint is refused."""
        self._compiler = compiler
        self._wake = wake
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    def begin(self, request: EngineRequest) -> Rejected | None:
        """Have the request wait for the grammar of its constraint, or say why not."""
        if self._compiler is None:
            return _refusal(request, "needs a device that computes; leave it out")
        try:
            constraint = Constraint.of_key(request.constraint)
            compilation = self._compiler.compile(constraint, done=self._wake)
        except CompilerBusyError:
            sentence = "Too many grammars wait to be compiled; try again later."
            return Rejected(request.handle, 429, sentence, PARAM, retry_after=1)
        self._waiting[request.handle] = _Waiting(request, compilation)
        return None

    def take_ended(self) -> list[tuple[EngineRequest, Grammar | Rejected]]:
        """Return the requests whose grammar is there, or will not be."""
        ended: list[tuple[EngineRequest, Grammar | Rejected]] = []
        for handle, waiting in list(self._waiting.items()):
            outcome = _outcome(waiting)
            if outcome is not None:
                del self._waiting[handle]
                ended.append((waiting.request, outcome))
        return ended

    def end(self, handle: int) -> None:
        """The client is gone; unknown handles are ignored."""
        self._waiting.pop(handle, None)

    def end_client(self, client: int) -> None:
        """Forget every request of one API process."""
        for handle, waiting in list(self._waiting.items()):
            if waiting.request.client == client:
                del self._waiting[handle]


def unfit_resume(request: EngineRequest, grammar: Grammar) -> Rejected | None:
    """Return a refusal if resumed output has not the form that the output is to have."""
    output = request.resume.output_token_ids if request.resume else []
    matcher = request.matcher(grammar)
    if matcher is None or all(map(matcher.accept, output)):
        return None
    sentence = "resume.output_token_ids has not the form that the output is to have."
    return Rejected(request.handle, 400, sentence, "resume.output_token_ids")


def _outcome(waiting: _Waiting) -> Grammar | Rejected | None:
    grammar, request = waiting.compilation.grammar, waiting.request
    if not grammar.done():
        if waiting.compilation.is_overdue:
            return _refusal(request, "takes too long to compile; make it simpler")
        return None
    try:
        return grammar.result()
    except ConstraintError as error:
        return _refusal(request, f"cannot be enforced: {error}")
    except (Exception, CancelledError) as error:
        log.exception("a grammar could not be compiled")
        sentence = f"The engine failed on this request ({type(error).__name__})."
        return Rejected(request.handle, 500, sentence)


def _refusal(request: EngineRequest, what: str) -> Rejected:
    sentence = f"The form that the output is to have {what}."
    return Rejected(request.handle, 400, sentence, PARAM)
