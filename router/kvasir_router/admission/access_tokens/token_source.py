"""Access tokens as admission sees them. Without issuers nothing else of this folder is imported: it
takes a quarter of a second."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum

from kvasir_router.admission.keyring import Holder, own_limits
from kvasir_router.admission.keys import is_token
from kvasir_router.admission.limits import Allowance, KeyLimits


class Reason(Enum):
    """Reasons for which tokens are refused, as metrics have them."""

    TOO_LONG = "too_long"
    MALFORMED = "malformed"
    ISSUER = "unknown_issuer"
    ALGORITHM = "algorithm"
    KEY = "unknown_key"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET = "not_yet_valid"
    AUDIENCE = "audience"
    CLAIM = "claim"
    TENANT = "tenant"
    SCOPE = "scope"
    NO_KEYS = "keys_unavailable"
    FULL = "too_many_tenants"


class TokenError(Exception):
    """Refusal of a token: a reason, and a sentence that repeats nothing of it but its key id."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TokenSource(ABC):
    """Finds the holders of access tokens, and keeps what they may do."""

    def __init__(self) -> None:
        self.make_limits: Callable[[str, Allowance, float], KeyLimits] = own_limits
        """Maker of limits from a tenant's id, its allowance and the monotonic time."""
        self.whole_day = False
        """True when budgets of a day are not divided."""
        self.refusals: Counter[str] = Counter()
        """Refused tokens by reason."""
        self.fetches: Counter[tuple[str, str]] = Counter()
        """Fetches of keys by the issuer's name and the result."""

    @staticmethod
    def is_token(authorization: bytes) -> bool:
        """Return whether an Authorization header holds a token, and so no key."""
        return authorization[:7].lower() == b"bearer " and is_token(authorization[7:].strip())

    @abstractmethod
    def find(self, authorization: bytes) -> Holder:
        """Return the holder of the token in an Authorization header. Raises TokenError."""

    @abstractmethod
    def share(self, routers: int) -> None:
        """Divide limits by another number of routers; what is used stays used."""

    @abstractmethod
    def key_counts(self) -> Mapping[str, int]:
        """Return the number of keys of each issuer, by its name."""

    @abstractmethod
    async def load(self) -> None:
        """Read the file of issuers. Raises YamlFileError."""

    @abstractmethod
    async def follow(self) -> None:
        """Read the file whenever it has changed, forever."""

    @abstractmethod
    async def fetch_all(self) -> None:
        """Fetch the keys of each issuer when they are due, forever."""
