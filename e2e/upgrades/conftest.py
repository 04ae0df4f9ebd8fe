"""The full cluster of e2e/kubernetes, without a release."""

from __future__ import annotations

pytest_plugins = ["harness.proof.fixtures"]
