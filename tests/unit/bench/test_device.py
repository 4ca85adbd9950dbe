from __future__ import annotations

import numpy as np
import pytest

from workbench.bench import device, options
from workbench.errors import WorkbenchError


def test_both_arms_have_the_same_results_and_their_ratios_are_in_the_report():
    report = device.run(options("device").parse_args(["--rows=400", "--features=4", "--rounds=2"]))

    names = list(device.fits(400, 4))
    assert [row["fit"] for row in report.rows] == [name for name in names for _ in range(4)]
    assert all(report.summary[name] > 0 for name in names)
    assert report.machine["device"] == "cpu"


def test_arms_that_differ_are_an_error():
    with pytest.raises(WorkbenchError):
        device._measured("a fit", lambda on: np.array([1000.0, 1001.0 if on else 1000.0]), "cpu", 1)
