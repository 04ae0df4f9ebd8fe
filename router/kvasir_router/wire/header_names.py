"""Treatment of a header, by its name: of a request's on its way to a replica, and of an
answer's on its way back."""

# Meant for one hop (RFC 9110, 7.6.1), or written anew by the router.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"x-request-id",
    }
)
# Answers are relayed uncompressed: events are cut, and an error event may have to follow.
_READ = HOP_BY_HOP | {
    b"host",
    b"expect",
    b"content-encoding",
    b"accept-encoding",
    b"authorization",
    b"x-api-key",
    b"x-request-timeout",
}

HOST, LENGTH = b"host", b"content-length"
_FRAMING = frozenset({LENGTH, b"transfer-encoding"})

# A kind is one of these, or the lower-case name of a header that the router reads itself.
FORWARD, DROP, REFUSE = b"forward", b"drop", b"refuse"

kinds: dict[bytes, bytes] = {}
"""Kinds by the names that clients have written, for a few names: ask `kind_of` for others."""

_MAX_KINDS = 1024
_MAX_LENGTH = 256


def kind_of(name: bytes) -> bytes:
    """The kind of a header. Refused are names that some servers take for those that frame a
    body: `Content_Length`."""
    key = name.lower()
    if key in _READ:
        kind = key
    elif key.replace(b"_", b"-") in _FRAMING:
        kind = REFUSE
    else:
        kind = DROP if key.startswith(b"x-kvasir-") else FORWARD
    if len(kinds) < _MAX_KINDS and len(name) <= _MAX_LENGTH:
        kinds[name] = kind
    return kind


_ANSWER_READ = frozenset({LENGTH, b"transfer-encoding", b"content-type", b"x-kvasir-usage"})

answer_kinds: dict[bytes, bytes] = {}
"""The same for answers: ask `answer_kind_of` for others."""


def answer_kind_of(name: bytes) -> bytes:
    """The kind of an answer's header: FORWARD, DROP, or what the router reads."""
    key = name.lower()
    if key in _ANSWER_READ:
        kind = key
    else:
        kind = DROP if key in HOP_BY_HOP or key.startswith(b"x-kvasir-") else FORWARD
    if len(answer_kinds) < _MAX_KINDS and len(name) <= _MAX_LENGTH:
        answer_kinds[name] = kind
    return kind
