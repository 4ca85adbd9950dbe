"""The errors that several estimators raise for the same rows, in scikit-learn's words: each sentence is here alone."""

from __future__ import annotations

import pytest


def not_finite(found=r"(NaN|infinity)", name="X"):
    """Require the error for rows or labels with NaN or infinity."""
    return pytest.raises(ValueError, match=f"^Input {name} contains {found}")


def overflow():
    """Require the error for rows whose products overflow."""
    return pytest.raises(ValueError, match=r"(Products of rows|Distances) overflow")


def other_features():
    """Require the error for rows with other names of features than those of the fit."""
    return pytest.raises(ValueError, match="feature names should match")


def other_length():
    """Require the error for labels or weights of more or fewer rows."""
    return pytest.raises(ValueError, match="inconsistent numbers of samples")


def no_weight():
    """Require the error for weights that are all zero."""
    return pytest.raises(ValueError, match="at least one non-zero number")
