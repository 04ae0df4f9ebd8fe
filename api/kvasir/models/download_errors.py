"""Errors that end a download without a model."""

from __future__ import annotations


class DownloadError(Exception):
    """A download failed; the message says why. Another attempt may succeed."""

    permanent = False


class PermanentError(DownloadError):
    """Another attempt cannot succeed before something is changed; the message says what."""

    permanent = True
