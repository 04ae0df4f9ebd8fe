"""Xids of NVIDIA's driver, and whether a GPU that had one goes on: pure.

Immediate actions and names are from the Xid catalog,
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, those of memory from
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt. Which ones are an application's own is what
NVIDIA's device plugin says (internal/rm/health.go of https://github.com/NVIDIA/k8s-device-plugin).
"""

from __future__ import annotations

from typing import Final

from kvasir_engine.settings import SettingsError

MAX_XID: Final = 9999
MAX_XIDS: Final = 64
"""Xids that --gpu-fault-xids takes."""

DRAIN_XIDS: Final = {
    46: "it stopped processing",
    48: "an uncorrectable ECC error",
    62: "its microcontroller halted",
    64: "a row could not be remapped",
    74: "an error of NVLink",
    79: "it has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    110: "a fault of its security",
    119: "its system processor (GSP) does not answer",
    120: "its system processor (GSP) failed",
    140: "an ECC error without recovery",
}
"""Xids after which the engine ends, with clauses: what runs is lost, wrong or about to be."""

OWN_XIDS: Final = {
    13: "an exception of a kernel",
    31: "a page fault of a kernel",
    43: "a kernel was stopped",
    45: "a process was cleaned up",
    68: "an exception of the video processor",
    109: "a switch of contexts timed out",
}
"""Xids of what runs on the GPU, not of the GPU: a CUDA error follows in the process at fault."""

OBSERVED_XIDS: Final = {
    63: "a row is to be remapped at the next reset",
    92: "many corrected ECC errors",
}
"""Xids of a GPU that wears out: what it computes stays right, so nothing ends. NVIDIA on 63: a
pending remapping does not affect future work."""

_KNOWN: Final = DRAIN_XIDS | OWN_XIDS | OBSERVED_XIDS


def xid_kind(xid: int) -> str:
    """Return the value of the metrics' label `kind`, of which there are as many as known Xids and
    one more."""
    return f"xid_{xid}" if xid in _KNOWN else "xid_other"


def xid_clause(xid: int) -> str:
    """Return a clause on what happened."""
    return f"Xid {xid}, {_KNOWN.get(xid, 'which is not known here')}"


def parse_xids(text: str) -> frozenset[int]:
    """Return the Xids of a list such as `48,79`; those of DRAIN_XIDS if it is empty. Raises
    SettingsError."""
    if not text.strip():
        return frozenset(DRAIN_XIDS)
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_XIDS:
        raise SettingsError(f"--gpu-fault-xids takes at most {MAX_XIDS} Xids, got {len(parts)}.")
    for part in parts:
        if not (part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= MAX_XID):
            raise SettingsError(
                f"--gpu-fault-xids takes numbers from 1 to {MAX_XID} with commas, as 48,79; got "
                f"{part[:50]!r}."
            )
    return frozenset(map(int, parts))
