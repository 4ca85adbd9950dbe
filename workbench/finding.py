"""What a check of the doctor has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What one check has found."""

    check: str
    """What was looked at."""
    verdict: Literal["ok", "warning", "failed"]
    """``failed``: no cluster will start, or work, as it is."""
    detail: str
    """What was seen."""
    remedy: str = ""
    """What to do, as an order; empty where there is nothing to do."""


def failure(check: str, error: Exception) -> Finding:
    """Return the finding that an error of this package is; its last sentence is what to do."""
    detail, _, remedy = str(error).rpartition(". ")
    return Finding(check, "failed", detail or str(error), remedy if detail else "")


def skipped(check: str, failed: str) -> Finding:
    """Return the finding of a check that rests on one that has failed."""
    return Finding(check, "warning", f"not checked, since the check of {failed} failed", f"See to {failed} first.")
