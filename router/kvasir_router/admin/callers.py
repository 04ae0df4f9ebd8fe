"""Callers of the admin port: who they are, where they are, and whether they may change something.

Known are those who send the fleet secret, or an access token that an issuer of this router has
signed. Secrets may change everything; tokens what their issuer's `permissions` say.
"""

from typing import NamedTuple

from starlette.requests import Request

from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER
from kvasir_router.admin.audit_log import fingerprint
from kvasir_router.admin.problem import ProblemError
from kvasir_router.admission.access_tokens.token_source import TokenError
from kvasir_router.admission.admission import bad_token
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.wire.engine_json import read_error
from kvasir_router.wire.http_request import RequestError


class Caller(NamedTuple):
    """Caller of one request."""

    who: str = ""
    """As the audit log names it: a fingerprint of the secret, or the token's issuer, tenant and
    subject's digest; empty for nobody known."""
    refusal: ProblemError | None = None
    """Reason that it may change nothing; None if it may."""


class Callers:
    """Callers of one process's admin port."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def caller(self, request: Request) -> Caller:
        """Return who has sent the request; looked up once."""
        found: Caller | None = getattr(request.state, "caller", None)
        if found is None:
            found = request.state.caller = self._find(request)
        return found

    def authorize(self, request: Request) -> None:
        """Raises ProblemError if the caller may change nothing."""
        refusal = self.caller(request).refusal
        if refusal is not None:
            raise refusal

    def address(self, request: Request) -> str:
        """Return the address that the request came from, as on the main port."""
        peer = request.client.host if request.client is not None else ""
        proxies = self._gateway.clients.proxies
        if not proxies.trusts(peer):
            return peer
        values = request.headers.getlist("x-forwarded-for")
        lines = [b"x-forwarded-for:" + value.encode("latin-1") for value in values]
        try:
            return proxies.client_of(lines, peer)
        except RequestError:
            return peer

    def _find(self, request: Request) -> Caller:
        secrets = self._gateway.fleet_secrets
        sent = request.headers.get(FLEET_SECRET_HEADER, "")
        if sent and secrets.accepts(sent):
            return Caller(fingerprint(sent))
        tokens = self._gateway.admission.tokens
        credential = request.headers.get("authorization", "").encode("latin-1")
        if tokens is None:
            return Caller("", self._unknown())
        if not tokens.is_token(credential):
            return Caller("", self._unknown(or_token=True))
        try:
            holder = tokens.find(credential)
        except TokenError as error:
            answer = bad_token(error)
            code = read_error(answer.body).error.code or ""
            return Caller("", ProblemError(answer.status, str(error), code))
        who = f"token:{holder.owner}"
        if holder.rights.admin:
            return Caller(who)
        message = (
            "the access token permits no change here: its issuer's `permissions` must give it "
            "`admin`"
        )
        return Caller(who, ProblemError(403, message, "insufficient_scope"))

    def _unknown(self, *, or_token: bool = False) -> ProblemError:
        """Make the refusal of a caller who is not known: what changes something needs a secret, or
        a token that permits it, as far as this router has a use for either."""
        ways = []
        if self._gateway.fleet_secrets.now.accepted:
            ways.append(f"the fleet secret in the header {FLEET_SECRET_HEADER}")
        if or_token:
            ways.append(
                "an access token whose permissions give it `admin` as `Authorization: Bearer TOKEN`"
            )
        if ways:
            return ProblemError(401, f"send {', or '.join(ways)}", "unauthorized")
        message = (
            "nothing can be changed here: this router has no fleet secret to know you by; "
            "start it with --fleet-secret-file"
        )
        return ProblemError(403, message, "no_fleet_secret")
