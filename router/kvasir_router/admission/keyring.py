"""The keys in use: found by what a client sends, kept as their file says."""

import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

from kvasir_router.admission.keys import ApiKey, Grant, KeyFile, hash_key, read_keys
from kvasir_router.admission.limits import Allowance, KeyLimits
from kvasir_router.file_watch import FileWatch, FollowedFile
from kvasir_router.fleet.target import Target
from kvasir_router.yaml_file import YamlFileError

_MAX_KNOWN = 4096
_MAX_KNOWN_BYTES = 256


class Rights(NamedTuple):
    """Permissions of one access token, beside those of its tenant."""

    models: tuple[str, ...] | None = None
    """Models that it may use as far as its tenant may; None = all of those."""
    admin: bool = False
    """True if it may change what the admin port lets change."""
    ends: float = inf
    """Unix seconds at which what it has begun ends with an error."""


class _Models:
    """Models by name, or by the beginning of a name with a `*`."""

    __slots__ = ("_exact", "_prefixes", "some")

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.some = bool(patterns)
        self._exact = frozenset(name for name in patterns if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in patterns if name.endswith("*"))

    def has(self, name: str) -> bool:
        return name in self._exact or name.startswith(self._prefixes)


class Holder:
    """Key, or access token, with what it has used."""

    __slots__ = ("_models", "_own_models", "id", "key", "limits", "owner", "rights", "title")

    def __init__(
        self,
        key: Grant,
        limits: KeyLimits,
        key_id: str,
        owner: str = "",
        title: str = "",
        rights: Rights = Rights(),  # noqa: B008 - it never changes
    ) -> None:
        """`owner`: whose the kept responses are, by default the key's; `title` begins sentences,
        by default "The API key `ID`"."""
        self.key = key
        self.limits = limits
        self.id = key_id
        """Name in logs, metrics and limits."""
        self.owner = owner or key_id
        self.title = title or f"The API key `{key_id}`"
        self.rights = rights
        self._models = _Models(key.models)
        self._own_models = None if rights.models is None else _Models(rights.models)

    def may_use(self, name: str, target: Target) -> bool:
        """Return True if the key may use what clients call `name`. A model's aliases are the model;
        adapters and canaries are names of their own."""
        if self.allows(name):
            return True
        if name not in target.model.spec.aliases:
            return False
        model, own = target.model.name, self._own_models
        # Of the tenant and of the token, one may name the alias and the other the model
        return (self._models.has(name) or self._models.has(model)) and (
            own is None or own.has(name) or own.has(model)
        )

    def allows(self, name: str) -> bool:
        """Return True if the name is among the key's models, or begins like one with a `*`."""
        return self._models.has(name) and (self._own_models is None or self._own_models.has(name))

    @property
    def uses_nothing(self) -> bool:
        """Return whether it may use no model at all."""
        own = self._own_models
        return not self._models.some or (own is not None and not own.some)


class Keyring:
    """The keys of `path`, divided by the number of routers that share the clients.

    `reported` is called after each attempt to read a changed file, with whether it was good; when
    it was not, the last good keys stay.
    """

    def __init__(self, path: Path, routers: int, reported: Callable[[bool], None]) -> None:
        self._routers = routers
        self._file: FollowedFile[KeyFile] = FollowedFile(
            "key file", FileWatch(path), partial(read_keys, path), reported, (YamlFileError,)
        )
        self._holders: dict[str, Holder] = {}
        self._known: dict[bytes, Holder] = {}
        """Holders by headers that have come: clients send the same one again and again."""
        self.make_limits: Callable[[str, Allowance, float], KeyLimits] = own_limits
        """Maker of limits from a key's id, its allowance and the monotonic time."""
        self.changed: Callable[[list[str], list[str], list[str]], None] | None = None
        """Told of the ids that a changed file adds, takes away, and has other permissions for."""
        self.whole_day = False
        """True when budgets of a day are not divided."""

    def __len__(self) -> int:
        return len(self._holders)

    def find(self, authorization: bytes) -> Holder | None:
        """Return the holder of the key in an Authorization header; None for none and for anything
        else."""
        holder = self._known.get(authorization)
        if holder is None and authorization[:7].lower() == b"bearer ":
            holder = self._holders.get(hash_key(authorization[7:].strip()))
            if holder is not None:
                self._remember(authorization, holder)
        return holder

    def _remember(self, authorization: bytes, holder: Holder) -> None:
        if len(self._known) < _MAX_KNOWN and len(authorization) <= _MAX_KNOWN_BYTES:
            self._known[authorization] = holder

    async def load(self) -> None:
        """Read the file. Raises YamlFileError."""
        self._take(await self._file.load())

    async def follow(self) -> None:
        """Read the file whenever it has changed, forever."""
        await self._file.follow(self._use)

    async def read_again(self) -> None:
        """Read the file, or say why it cannot be used."""
        await self._file.look(self._use, force=True)

    def share(self, routers: int) -> bool:
        """Divide by another number of routers; False where it is the same one. What is used stays
        used."""
        if routers == self._routers:
            return False
        self._routers = routers
        now = time.monotonic()
        for holder in self._holders.values():
            holder.limits.change(self._part(holder.key), now)
        return True

    def _use(self, file: KeyFile) -> None:
        before = {holder.id: holder.key for holder in self._holders.values()}
        self._take(file)
        if self.changed is not None:
            now = {key.id: key for key in file.keys}
            other = [name for name in now.keys() & before.keys() if now[name] != before[name]]
            added, removed = list(now.keys() - before.keys()), list(before.keys() - now.keys())
            if added or removed or other:
                self.changed(added, removed, other)

    def _take(self, file: KeyFile) -> None:
        """A key that stays, by its id, keeps what it has used."""
        limits = {holder.id: holder.limits for holder in self._holders.values()}
        holders = {key.hash: Holder(key, self._limits(key, limits), key.id) for key in file.keys}
        self._holders, self._known = holders, {}

    def _limits(self, key: ApiKey, before: dict[str, KeyLimits]) -> KeyLimits:
        allowance = self._part(key)
        now = time.monotonic()
        limits = before.get(key.id)
        if limits is None:
            return self.make_limits(key.id, allowance, now)
        limits.change(allowance, now)
        return limits

    def _part(self, key: Grant) -> Allowance:
        return key.allowance.divided(self._routers, whole_day=self.whole_day)


def own_limits(key_id: str, allowance: Allowance, now: float) -> KeyLimits:
    """Return limits of this process alone."""
    return KeyLimits(allowance, now)
