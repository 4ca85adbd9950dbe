"""The result of a check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.errors import WorkbenchError
from workbench.hints import Hint


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    check: str
    """What was checked."""
    verdict: Literal["ok", "warning", "failed"]
    """``failed``: no cluster will start, or work."""
    detail: str
    """The observation."""
    remedy: Hint = ""
    """What to do; empty if nothing."""


def failure(check: str, error: WorkbenchError | OSError) -> CheckResult:
    """Return the result of a check that an error has ended."""
    if isinstance(error, WorkbenchError):
        return CheckResult(check, "failed", error.message.removesuffix("."), error.hint)
    return CheckResult(check, "failed", str(error))


def skipped(check: str, failed: str) -> CheckResult:
    """Return the result of a check that needs one that has failed."""
    return CheckResult(
        check, "warning", f"not checked, because the check of {failed} failed", f"Repair {failed} first."
    )
