"""What a check of the doctor has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.errors import WorkbenchError
from workbench.hints import Hint


@dataclass(frozen=True)
class CheckResult:
    """What one check has found."""

    check: str
    """What was looked at."""
    verdict: Literal["ok", "warning", "failed"]
    """``failed``: no cluster will start, or work, as it is."""
    detail: str
    """What was seen."""
    remedy: Hint = ""
    """What to do, as an order; empty where there is nothing to do."""


def failure(check: str, error: WorkbenchError | OSError) -> CheckResult:
    """Return the finding that an error is."""
    if isinstance(error, WorkbenchError):
        return CheckResult(check, "failed", error.message.removesuffix("."), error.hint)
    return CheckResult(check, "failed", str(error))


def skipped(check: str, failed: str) -> CheckResult:
    """Return the finding of a check that rests on one that has failed."""
    return CheckResult(check, "warning", f"not checked, since the check of {failed} failed", f"See to {failed} first.")
