"""Access tokens in use: checked once, then found by their digest; tenants keep what they used."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from math import inf
from pathlib import Path

import jwt
import structlog

from kvasir_router.admission.access_tokens.issuers import Issuer, IssuerFile, read_issuers
from kvasir_router.admission.access_tokens.key_fetch import KeyFetchError, fetch_keys
from kvasir_router.admission.access_tokens.key_schedule import KeySchedule
from kvasir_router.admission.access_tokens.token_check import Verified, check_token
from kvasir_router.admission.access_tokens.token_source import Reason, TokenError, TokenSource
from kvasir_router.admission.keyring import Holder
from kvasir_router.admission.keys import Grant
from kvasir_router.admission.limits import DAY, Allowance, KeyLimits
from kvasir_router.file_watch import FileWatch, FollowedFile
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.yaml_file import YamlFileError

MAX_TENANTS = 50_000
"""Tenants whose use is known at once: as many as a key file has keys."""
_MAX_KNOWN = 8192
_OF_KEYS = {
    *("issuer", "algorithms", "jwks_url", "allow_http", "ca_file", "bearer_file"),
    *("refresh_seconds", "keep_seconds"),
}
"""Fields of an issuer on which its keys depend."""
_KNOWN_SECONDS = 300.0
"""A token is checked again after so long: its issuer's keys may be too old by then."""
_LOOK_SECONDS, _MAX_WAIT_SECONDS = 0.25, 1.0

_log = structlog.get_logger("kvasir_router.issuers")


class _Tenant:
    """One tenant of an issuer, with what its tokens have used."""

    __slots__ = ("grant", "limits", "seen")

    def __init__(self, grant: Grant, limits: KeyLimits) -> None:
        self.grant = grant
        self.limits = limits
        self.seen = 0.0
        """Unix seconds at which a token of it was last checked."""


class TokenHolders(TokenSource):
    """Holders of the access tokens that the issuers of `path` have signed.

    Each process of a router fetches the keys itself, so that none depends on another's. `reported`
    is told of a file by name whether it is good: the issuer file, and each issuer's keys.
    """

    def __init__(self, path: Path, routers: int, reported: Callable[[str, bool], None]) -> None:
        super().__init__()
        self._routers = routers
        self._reported = reported
        self._file: FollowedFile[IssuerFile] = FollowedFile(
            "issuer file",
            FileWatch(path),
            partial(read_issuers, path),
            partial(reported, "issuers"),
            (YamlFileError,),
        )
        self._max_bytes = 0
        self._issuers: dict[str, Issuer] = {}
        """By their URLs."""
        self.schedules: dict[str, KeySchedule] = {}
        """Keys of each issuer, by its name."""
        self._tenants: dict[str, _Tenant] = {}
        """By the id of their limits."""
        self._known: dict[bytes, tuple[Holder, float]] = {}
        """Holders, and the Unix time of their end, by the digests of tokens that were checked."""
        self.fetch = fetch_keys
        self._asked = asyncio.Event()

    def find(self, authorization: bytes) -> Holder:
        """TokenSource.find."""
        token = authorization[7:].strip()
        digest = blake2b(token, digest_size=32).digest()
        found = self._known.get(digest)
        if found is not None and time.time() < found[1]:
            return found[0]
        try:
            verified = check_token(token, self._max_bytes, self._issuers, self._key)
            holder = self._holder(verified)
        except TokenError as error:
            self.refusals[error.reason.value] += 1
            raise
        if digest not in self._known and len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[digest] = holder, min(verified.expires, time.time() + _KNOWN_SECONDS)
        return holder

    def _key(self, issuer: Issuer, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        schedule, now = self.schedules[issuer.name], time.monotonic()
        keys = schedule.keys(now)
        key = keys.find(key_id, algorithm) if keys is not None else None
        if key is not None:
            return key
        coming = schedule.ask(now)
        self._asked.set()
        if keys is None or coming:
            message = "The keys of the access token's issuer are not known yet; try again."
            raise TokenError(Reason.NO_KEYS, message)
        raise TokenError(Reason.KEY, "The access token is signed by a key that its issuer lacks.")

    def _holder(self, verified: Verified) -> Holder:
        issuer, name = verified.issuer, verified.tenant
        tenant_id = f"{issuer.name}:{name}"
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._new_tenant(issuer, name, tenant_id)
        tenant.seen = time.time()
        subject = blake2b(verified.subject.encode("utf-8", "surrogatepass"), digest_size=16)
        return Holder(
            tenant.grant,
            tenant.limits,
            tenant_id,
            # Responses that are kept are a person's, or a program's, not all of its tenant's.
            owner=f"{tenant_id}:{subject.hexdigest()}",
            title=f"The tenant `{tenant.grant.tenant}`",
            rights=verified.rights,
        )

    def _new_tenant(self, issuer: Issuer, name: str, tenant_id: str) -> _Tenant:
        grant = _named(issuer, name)
        if grant is None:
            message = f"The tenant `{name}` of the access token may use nothing here."
            raise TokenError(Reason.TENANT, message)
        if len(self._tenants) >= MAX_TENANTS and not self._forget():
            message = "The router has all the tenants that it may; try again later."
            raise TokenError(Reason.FULL, message)
        allowance = self._part(grant)
        limits = self.make_limits(tenant_id, allowance, time.monotonic())
        made = self._tenants[tenant_id] = _Tenant(grant, limits)
        return made

    def _part(self, grant: Grant) -> Allowance:
        return grant.allowance.divided(self._routers, whole_day=self.whole_day)

    def _forget(self) -> bool:
        """Forget tenants that did not come for a day, whose limits are full again; return whether
        there were some."""
        until = time.time() - DAY
        gone = {each for each, tenant in self._tenants.items() if tenant.seen < until}
        for each in gone:
            del self._tenants[each]
        self._known = {key: it for key, it in self._known.items() if it[0].id not in gone}
        return bool(gone)

    # The file

    async def load(self) -> None:
        """TokenSource.load."""
        self._use(await self._file.load())

    async def follow(self) -> None:
        """TokenSource.follow."""
        await self._file.follow(self._use)

    async def read_again(self) -> None:
        """Read the file, or say why it cannot be used."""
        await self._file.look(self._use, force=True)

    def share(self, routers: int) -> None:
        """TokenSource.share."""
        self._routers = routers
        now = time.monotonic()
        for tenant in self._tenants.values():
            tenant.limits.change(self._part(tenant.grant), now)

    def _use(self, file: IssuerFile) -> None:
        """An issuer that stays as it is keeps its keys; a tenant that stays, what it has used."""
        before = {name: schedule.issuer for name, schedule in self.schedules.items()}
        for name in before.keys() - {each.name for each in file.issuers}:
            self._reported(_keys_of(name), True)
        self._max_bytes = file.max_token_bytes
        self._issuers = {each.issuer: each for each in file.issuers}
        self.schedules = {
            each.name: self._schedule(each, before.get(each.name)) for each in file.issuers
        }
        self._known = {}
        by_name = {each.name: each for each in file.issuers}
        for tenant_id in list(self._tenants):
            name, _, claimed = tenant_id.partition(":")
            grant = _named(by_name[name], claimed) if name in by_name else None
            if grant is None:
                del self._tenants[tenant_id]
                continue
            tenant = self._tenants[tenant_id]
            tenant.grant = grant
            tenant.limits.change(self._part(grant), time.monotonic())
        self._asked.set()

    def _schedule(self, issuer: Issuer, before: Issuer | None) -> KeySchedule:
        if before is None or before.model_dump(include=_OF_KEYS) != issuer.model_dump(
            include=_OF_KEYS
        ):
            return KeySchedule(issuer)
        return self.schedules[issuer.name]

    # Keys

    def key_counts(self) -> Mapping[str, int]:
        """TokenSource.key_counts."""
        return {name: schedule.count for name, schedule in self.schedules.items()}

    async def fetch_all(self) -> None:
        """TokenSource.fetch_all; a slow issuer holds up none of the others."""
        tasks = SupervisedTasks()
        try:
            while True:
                self._asked.clear()
                now = time.monotonic()
                for schedule in self.schedules.values():
                    if schedule.due <= now and not schedule.fetching:
                        schedule.begin(now)
                        tasks.run("an issuer's keys", self._fetch(schedule))
                await self._wait()
        finally:
            await tasks.stop()

    async def _wait(self) -> None:
        """Wait until a fetch may be due."""
        now = time.monotonic()
        waiting = [each.due for each in self.schedules.values() if not each.fetching]
        seconds = min(waiting, default=inf) - now
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(seconds, _LOOK_SECONDS), _MAX_WAIT_SECONDS)):
                await self._asked.wait()

    async def _fetch(self, schedule: KeySchedule) -> None:
        name = schedule.issuer.name
        try:
            keys = await self.fetch(schedule.issuer)
        except Exception as error:
            defect = None if isinstance(error, KeyFetchError) else error
            text = "the keys of an issuer cannot be fetched, the last ones stay"
            _log.error(text, issuer=name, error=str(error), exc_info=defect)
            schedule.failed(time.monotonic())
            self._told(schedule, False)
            return
        schedule.fetched(keys, time.monotonic())
        self._told(schedule, True)
        # A token whose key is gone is checked anew, and refused.
        prefix = f"{name}:"
        known = self._known.items()
        self._known = {key: it for key, it in known if not it[0].id.startswith(prefix)}

    def _told(self, schedule: KeySchedule, good: bool) -> None:
        name = schedule.issuer.name
        self.fetches[name, "ok" if good else "failed"] += 1
        if self.schedules.get(name) is schedule:
            self._reported(_keys_of(name), good)


def _named(issuer: Issuer, tenant: str) -> Grant | None:
    """Return a tenant's grant under the tenant's name in the router."""
    grant = issuer.grant(tenant)
    if grant is None:
        return None
    return Grant.model_construct(**{**dict(grant), "tenant": issuer.tenant_prefix + tenant})


def _keys_of(name: str) -> str:
    return f"keys of issuer {name}"
