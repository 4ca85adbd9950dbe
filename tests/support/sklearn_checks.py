"""scikit-learn's own checks of estimators, as tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator


def accepted_by_scikit_learn(*estimators: Any, but: Mapping[str, str] | None = None) -> pytest.MarkDecorator:
    """Return what makes a test of ``(estimator, check)`` run all checks of scikit-learn.

    Parameters
    ----------
    *estimators
        What is checked.
    but
        Checks that fail, and why they have to.

    Notes
    -----
    Its own decorator has some that say that they were skipped, unless SciPy was loaded in a special way.
    """
    checks = [
        pytest.param(estimator, check, id=f"{estimator}-{check.func.__name__}", marks=_marks(check, but or {}))
        for given in estimators
        for estimator, check in estimator_checks_generator(given)
        if "array_api" not in check.func.__name__
    ]
    return pytest.mark.parametrize(("estimator", "check"), checks)


def _marks(check: Any, but: Mapping[str, str]) -> list[pytest.MarkDecorator]:
    name = check.func.__name__
    return [pytest.mark.xfail(reason=but[name], strict=True)] if name in but else []
