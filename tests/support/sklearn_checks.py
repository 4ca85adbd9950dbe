"""scikit-learn's own checks of estimators, as tests."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator


def accepted_by_scikit_learn(
    *estimators: Any, but: Container[str] = (), only: Container[str] | None = None
) -> pytest.MarkDecorator:
    """Return what makes a test of ``(estimator, check)`` run the checks of scikit-learn.

    Parameters
    ----------
    *estimators
        What is checked.
    but
        Names of checks that another test runs.
    only
        Names of the checks to run. Default: all.

    Notes
    -----
    Its own decorator has some that say that they were skipped, unless SciPy was loaded in a special way.
    """
    checks = [
        pytest.param(estimator, check, id=f"{type(estimator).__name__}-{number}-{name}")
        for number, given in enumerate(estimators)
        for estimator, check in estimator_checks_generator(given)
        if "array_api" not in (name := check.func.__name__) and name not in but and (only is None or name in only)
    ]
    return pytest.mark.parametrize(("estimator", "check"), checks)
