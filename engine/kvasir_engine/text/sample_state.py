"""Sample of a request: from the core's deltas to text, cut where a stop string says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.request import FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.text.detokenizer import Detokenizer, make_detokenizer
from kvasir_engine.text.parsing.markers import MarkedDetokenizer
from kvasir_engine.text.stop_strings import StopStrings


@dataclass(slots=True)
class SampleUpdate:
    """Text and tokens that one delta added to a sample, ready to be sent.

    `text` may lag behind `token_ids`: text that may become a stop string, and bytes of an
    unfinished character, wait. `text_offsets` is where each token's text begins in the whole
    output, filled with `logprobs`.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[LogprobEntry] | None = None
    text_offsets: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stopped_by_string: bool = False
    """The core does not know that this sample has ended: tell it (`finish_sample`)."""
    error: str | None = None


class SampleState:
    """State of one sample so far; resumed output counts as its own."""

    __slots__ = (
        "_chars",
        "_detokenizer",
        "_include_stop",
        "_min_tokens",
        "_pieces",
        "_skip_chars",
        "_stops",
        "cumulative_logprob",
        "finish_reason",
        "index",
        "logprobs",
        "stop_reason",
        "text_offsets",
        "token_ids",
    )

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.logprobs: list[LogprobEntry] | None = None if params.logprobs is None else []
        self.cumulative_logprob: float | None = None if params.logprobs is None else 0.0
        self.text_offsets: list[int] = []
        """Offsets at which each token of `logprobs` begins in the text."""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._pieces: list[str] = []
        self._chars = 0
        self._skip_chars = 0
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = make_detokenizer(
                tokenizer,
                prompt_token_ids=prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
            )
        self._stops = None
        if params.stop and self._detokenizer is not None:
            self._stops = StopStrings(
                params.stop, include_in_output=params.include_stop_str_in_output
            )

    @property
    def text(self) -> str:
        """The whole text that may be shown so far, resumed output included."""
        return "".join(self._pieces)

    @property
    def finished(self) -> bool:
        """True once it has a finish reason."""
        return self.finish_reason is not None

    def mark(self, signs: Mapping[int, str]) -> None:
        """Give out these special tokens as signs, before the first token."""
        if self._detokenizer is not None and signs:
            self._detokenizer = MarkedDetokenizer(self._detokenizer, signs)

    def resume(
        self,
        token_ids: Sequence[int],
        sent_chars: int,
        ended: tuple[FinishReason, int | None] | None,
    ) -> SampleUpdate:
        """Take over output that was produced elsewhere, of which the client has `sent_chars`.

        `ended` is how the ids end the sample by themselves (EOS, stop id, length), if they do. The
        update holds the text that was certain but not sent, and the end if there is one.
        """
        self._skip_chars = sent_chars
        update = SampleUpdate(index=self.index, text="", token_ids=[])
        silent_last = ended is not None and ended[0] is FinishReason.STOP and not self._include_stop
        taken = self._read(token_ids, skip_last_text=silent_last, update=update)
        update.text_offsets.clear()
        self.token_ids.extend(token_ids[:taken])
        matched = None if self._stops is None else self._stops.matched
        if matched is not None:
            self._end(update, FinishReason.STOP, matched)
        elif ended is not None:
            self._finish_text(update)
            self._end(update, *ended)
        return update

    def push(self, delta: SampleDelta) -> SampleUpdate:
        """Take one delta. After the end of the sample every delta is empty."""
        update = SampleUpdate(index=self.index, text="", token_ids=[])
        if self.finish_reason is not None:
            return update
        reason = delta.finish_reason
        # The token that ends a sample has no place in the text, as in vLLM.
        silent_last = reason is FinishReason.STOP and not self._include_stop
        taken = self._read(delta.token_ids, skip_last_text=silent_last, update=update)
        self._keep(delta, taken, update)
        stops = self._stops
        if reason is not None and (stops is None or stops.matched is None):
            self._finish_text(update)
        if stops is not None and stops.matched is not None:
            update.stopped_by_string = reason is None
            self._end(update, FinishReason.STOP, stops.matched)
        elif reason is not None:
            self._end(update, reason, delta.stop_reason)
            update.error = delta.error
        return update

    def _read(self, token_ids: Sequence[int], *, skip_last_text: bool, update: SampleUpdate) -> int:
        """Decode tokens up to the one that completes a stop string; return how many were taken."""
        detokenizer = self._detokenizer
        if detokenizer is None:
            return len(token_ids)
        before = len(self.token_ids)
        last = len(token_ids) - 1
        with_offsets = self.logprobs is not None
        for at, token_id in enumerate(token_ids):
            if with_offsets:
                update.text_offsets.append(self._chars)
            if skip_last_text and at == last:
                break
            text = detokenizer.push(token_id)
            if not text:
                continue
            self._chars += len(text)
            if self._stops is None:
                self._show(text, update)
                continue
            self._show(self._stops.push(text, armed=before + at + 1 > self._min_tokens), update)
            if self._stops.matched is not None:
                return at + 1
        return len(token_ids)

    def _keep(self, delta: SampleDelta, taken: int, update: SampleUpdate) -> None:
        """Record ids and logprobs, cut after `taken` tokens."""
        ids = delta.token_ids if taken == len(delta.token_ids) else delta.token_ids[:taken]
        update.token_ids = ids
        self.token_ids.extend(ids)
        if delta.logprobs is not None and self.logprobs is not None:
            entries = delta.logprobs[:taken]
            update.logprobs = entries
            self.logprobs.extend(entries)
            self.text_offsets.extend(update.text_offsets)
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + sum(
                entry.logprob for entry in entries
            )
        if delta.cumulative_logprob is not None:
            self.cumulative_logprob = delta.cumulative_logprob

    def _finish_text(self, update: SampleUpdate) -> None:
        if self._detokenizer is None:
            return
        text = self._detokenizer.flush()
        self._chars += len(text)
        if self._stops is not None:
            armed = len(self.token_ids) > self._min_tokens
            text = self._stops.push(text, armed=armed) + self._stops.flush()
        self._show(text, update)

    def _show(self, text: str, update: SampleUpdate) -> None:
        if not text:
            return
        self._pieces.append(text)
        if self._skip_chars:
            skipped = min(self._skip_chars, len(text))
            self._skip_chars -= skipped
            text = text[skipped:]
        update.text += text

    def _end(
        self, update: SampleUpdate, reason: FinishReason, stop_reason: int | str | None
    ) -> None:
        self.finish_reason = update.finish_reason = reason
        self.stop_reason = update.stop_reason = stop_reason
