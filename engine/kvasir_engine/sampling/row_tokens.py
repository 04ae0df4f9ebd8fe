"""Token lists that some rows carry (biases, bans, allowed ids), ready as flat device indices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir_engine.device.upload import upload
from kvasir_engine.step_plan import Float32Array, Int32Array, Int64Array


@dataclass(frozen=True, slots=True)
class TokenLists:
    """The lists of one step's rows, concatenated; all on the device.

    `entries` [lists] are the batch entries that have a list, `owner` [n] is each token's entry,
    `flat` [n] its index into the flattened [batch, vocab] logits, `values` [n] its value.
    """

    entries: Tensor
    owner: Tensor
    flat: Tensor
    values: Tensor


class RowTokens:
    """Lists of (token, value), at most one a row.

    While the same rows are sampled step after step nothing is uploaded: the device form is kept
    until the batch or one of its lists changes.
    """

    def __init__(self, *, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._present = np.zeros(max_rows, dtype=np.bool_)
        self._lists: dict[int, tuple[Int64Array, Float32Array]] = {}
        self._cached_rows: bytes | None = None
        self._cached: TokenLists | None = None

    def put(self, row: int, tokens: Int64Array, values: Float32Array | None = None) -> None:
        """Give the row its list; an empty one takes it away. Values default to 0."""
        if tokens.size == 0 and not self._present[row]:
            return
        self._cached_rows = None
        self._present[row] = tokens.size > 0
        if tokens.size == 0:
            del self._lists[row]
            return
        self._lists[row] = (
            tokens,
            np.zeros(tokens.size, dtype=np.float32) if values is None else values,
        )

    def of_batch(self, rows: npt.NDArray[np.integer]) -> TokenLists | None:
        """The lists of these rows, or None when no row has one."""
        present = self._present[rows]
        if not present.any():
            return None
        key = rows.tobytes()
        if key != self._cached_rows:
            self._cached = self._build(rows, np.flatnonzero(present))
            self._cached_rows = key
        return self._cached

    def _build(self, rows: npt.NDArray[np.integer], entries: Int64Array) -> TokenLists:
        lists = [self._lists[int(rows[entry])] for entry in entries]
        owner = np.repeat(entries, [tokens.size for tokens, _ in lists])
        tokens = np.concatenate([tokens for tokens, _ in lists])
        return TokenLists(
            entries=upload(entries, self._device),
            owner=upload(owner, self._device),
            flat=upload(owner * self._vocab_size + tokens, self._device),
            values=upload(np.concatenate([values for _, values in lists]), self._device),
        )


class RowBadWords:
    """Banned words of rows: the last token of each is banned while history ends with the rest."""

    def __init__(self, *, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._last = RowTokens(max_rows=max_rows, vocab_size=vocab_size, device=device)
        self._device = device
        self._prefixes: dict[int, list[list[int]]] = {}
        self._cached_for: TokenLists | None = None
        self._cached: Tensor | None = None

    def put(self, row: int, words: list[list[int]]) -> None:
        """Give the row its words, each of at least one token; [] takes them away."""
        self._prefixes[row] = [word[:-1] for word in words]
        self._last.put(row, np.array([word[-1] for word in words], dtype=np.int64))

    def of_batch(self, rows: Int32Array) -> tuple[TokenLists, Tensor] | None:
        """The words' last tokens and their prefixes, int32 [words, longest] padded left by -1."""
        last = self._last.of_batch(rows)
        if last is None:
            return None
        if self._cached is None or last is not self._cached_for:
            self._cached_for, self._cached = last, self._build(rows)
        return last, self._cached

    def _build(self, rows: Int32Array) -> Tensor:
        prefixes = [prefix for row in rows for prefix in self._prefixes.get(int(row), ())]
        longest = max(map(len, prefixes))
        padded = np.full((len(prefixes), longest), -1, dtype=np.int32)
        for line, prefix in zip(padded, prefixes, strict=True):
            line[longest - len(prefix) :] = prefix
        return upload(padded, self._device)
