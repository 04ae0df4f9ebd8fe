"""Targets of the names that clients use."""

from collections.abc import Sequence
from math import inf, log
from random import random
from typing import NamedTuple

import msgspec
import xxhash

from kvasir_router.fleet.model import Model
from kvasir_router.wire.envelope import DenseBodyError, is_dense


class Target(NamedTuple):
    """The model behind a name."""

    model: Model
    adapter: str = ""
    """The LoRA adapter that the name is; empty = the model itself."""
    renamed: bool = False
    """The engines do not know the name: `rename` the body to `model.name`."""


class Canary:
    """One name for several models.

    A request with a key (the body's `user`) goes by weighted rendezvous hashing: to the model with
    the largest -weight / ln(u), u the key's and model's hash as a number in (0, 1). So a user stays
    with one model, and a changed weight moves only users to the model that gains or from the one
    that loses (Mosko et al. 2014, after Thaler and Ravishankar's rendezvous hashing, 1998). One
    without a key is drawn anew each time.
    """

    def __init__(self, split: Sequence[tuple[Model, float]]) -> None:
        """Weights are not negative and not all 0."""
        self._split = [
            (weight, model.name.encode(), Target(model, renamed=True)) for model, weight in split
        ]

    def pick(self, key: str | None) -> Target:
        """The target of one request."""
        seed = xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) if key else None
        best, target = inf, self._split[0][2]
        for weight, name, each in self._split:
            if not weight:
                continue
            u = random() if seed is None else xxhash.xxh3_64_intdigest(name, seed) / 2**64
            score = -log(u or 2**-65) / weight
            if score < best:
                best, target = score, each
        return target


def rename(body: bytes, name: str) -> bytes:
    """The JSON object `body` with another `model`; everything else stays as it was written. Raises
    DenseBodyError."""
    if is_dense(body):
        raise DenseBodyError
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields["model"] = msgspec.Raw(msgspec.json.encode(name))
    return msgspec.json.encode(fields)
