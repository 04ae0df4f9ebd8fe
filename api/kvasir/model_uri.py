"""Model sources: a URI, a plain path or a plain Hugging Face id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

MAX_URI_LENGTH = 1024

LOCAL_SCHEMES = ("hf", "builtin", "file")
"""Schemes that work on any machine."""

CLUSTER_SCHEMES = ("s3", "pvc", "oci", "https", "http")
"""Schemes that a cluster's cache resolves."""

_HF_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_HF_ID = re.compile(rf"(?:{_HF_PART}/)?{_HF_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")
_BUILTIN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SEGMENTS = r"(?:/(?!\.{1,2}(?:/|$))[^/\s\\]{1,255})*/?"
_WEB = re.compile(r"[^\s/@?#]+/[^\s@]+")
_CLUSTER_FORMS = {
    "s3": (
        re.compile(rf"[a-z0-9](?:[a-z0-9.-]{{0,61}}[a-z0-9])?{_SEGMENTS}"),
        "s3://BUCKET[/PREFIX]",
    ),
    "pvc": (
        re.compile(rf"[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?{_SEGMENTS}"),
        "pvc://CLAIM[/PATH]",
    ),
    "oci": (
        re.compile(
            r"[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+"
            r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
        ),
        "oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST]",
    ),
    "https": (_WEB, "https://HOST/PATH, without a user or password in it"),
    "http": (_WEB, "http://HOST/PATH, without a user or password in it"),
}
"""Pattern of what follows :// in each scheme, and the form to name in an error."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


class ModelURIError(ValueError):
    """A model URI cannot be used; the message names it and what to write instead."""


@dataclass(frozen=True, slots=True)
class ModelURI:
    """One parsed model URI; `str()` gives its canonical form."""

    scheme: str
    name: str
    """hf: "org/name"; builtin: the model's name; file: the path; others: what follows ://."""
    revision: str | None = None
    """hf only: a branch, tag or commit."""

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{quote(self.name)}"
        suffix = f"@{self.revision}" if self.revision else ""
        return f"{self.scheme}://{self.name}{suffix}"

    def require_local(self) -> None:
        """Raises ModelURIError for a scheme that needs a cluster."""
        if self.scheme in CLUSTER_SCHEMES:
            raise ModelURIError(
                f"model URI {str(self)!r}: {self.scheme}:// is not supported without a cluster;"
                " download the model (see kvasir download --help) and name its directory"
            )


def parse_model_uri(text: str) -> ModelURI:
    """The model that `text` names, as `kvasir serve` and `spec.model.uri` take it.

    Without a scheme, text that begins with `/`, `.` or `~` or names something that exists is a
    path, and everything else a Hugging Face id. Raises ModelURIError.
    """
    if not text or len(text) > MAX_URI_LENGTH or not text.isprintable():
        raise ModelURIError(
            f"model URI {text[:64]!r} must be 1 to {MAX_URI_LENGTH} printable characters"
        )
    if match := _SCHEME.fullmatch(text):
        return _parse_scheme(match[1].lower(), match[2], text)
    if text[0] in "/.~" or Path(text).exists():
        return ModelURI("file", _absolute(text))
    return _parse_hf(text, text)


def _parse_scheme(scheme: str, rest: str, text: str) -> ModelURI:
    if scheme == "hf":
        return _parse_hf(rest, text)
    if scheme == "builtin":
        if not _BUILTIN.fullmatch(rest):
            raise ModelURIError(
                f"model URI {text!r}: write builtin://NAME, as builtin://kvasir-tiny"
            )
        return ModelURI(scheme, rest)
    if scheme == "file":
        path = unquote(rest)
        if not path.startswith("/") or not path.isprintable():
            raise ModelURIError(
                f"model URI {text!r}: write file:///ABSOLUTE/PATH, with three slashes"
            )
        return ModelURI(scheme, path)
    if scheme in CLUSTER_SCHEMES:
        if not rest.strip("/"):
            raise ModelURIError(f"model URI {text!r} names nothing after {scheme}://")
        form, remedy = _CLUSTER_FORMS[scheme]
        if not form.fullmatch(rest):
            raise ModelURIError(f"model URI {text!r}: write {remedy}")
        return ModelURI(scheme, rest)
    known = ", ".join(f"{name}://" for name in (*LOCAL_SCHEMES, *CLUSTER_SCHEMES))
    raise ModelURIError(f"model URI {text!r}: scheme {scheme!r} is not one of {known}")


def _parse_hf(rest: str, text: str) -> ModelURI:
    name, at, revision = rest.partition("@")
    if not _HF_ID.fullmatch(name) or "--" in name or ".." in name:
        raise ModelURIError(
            f"model URI {text!r} is no existing path and no Hugging Face id; write"
            " hf://ORG/NAME[@REVISION], or a path that begins with / or ./"
        )
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ModelURIError(
            f"model URI {text!r}: revision {revision!r} is not a branch, tag or commit name"
        )
    return ModelURI("hf", name, revision or None)


def _absolute(text: str) -> str:
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError as error:  # ~nobody: no such home directory
        raise ModelURIError(f"model URI {text!r}: {error}") from error
