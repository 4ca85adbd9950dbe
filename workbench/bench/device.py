"""Fits of workbench.ml whose rows are on a device of PyTorch, against the same fits with NumPy, in one process.

On the device ``cpu`` both arms have one thread and the same memory, so the ratio is the price of code that also runs on
a GPU. CPU time is measured there, to which other programs add little.
"""

from __future__ import annotations

import statistics
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  (the limit of threads holds for loaded libraries)
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from workbench import ml
from workbench.bench import measuring
from workbench.bench.report import Report, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

NUMPY, DEVICE = "numpy", "device"
"""The arms."""
TARGET = 1.3
"""Largest valid ratio of the times on the device ``cpu`` over those with NumPy."""
CLOSE = 1e-9
"""Largest valid difference of the results, relative to the largest number."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--device", default="cpu", help="device of PyTorch (default: cpu)")
    parser.add_argument("--rows", type=positive, default=200_000, help="rows (default: 200000)")
    parser.add_argument("--features", type=positive, default=32, help="features (default: 32)")
    parser.add_argument("--rounds", type=positive, default=9, help="measurements of each arm (default: 9)")


def run(options: Namespace) -> Report:
    """Measure both arms, and return the report.

    Raises
    ------
    InvalidRequest
        If this process cannot use the device.
    WorkbenchError
        If the results of the arms differ.
    """
    import torch

    rows: list[dict[str, Any]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), warnings.catch_warnings():
            # K-means ends after ten iterations.
            warnings.simplefilter("ignore", ConvergenceWarning)
            for name, fit in fits(options.rows, options.features).items():
                rows += _measured(name, fit, options.device, options.rounds)
    finally:
        torch.set_num_threads(before)
    facts = {"device": options.device, "torch": version("torch"), "rows": options.rows, "features": options.features}
    return Report("device", machine(mpi_library.find()) | facts, rows, summarize(rows))


def _measured(name: str, fit: Callable[[str | None], Any], device: str, rounds: int) -> list[dict[str, Any]]:
    rows, results = [], {}
    clock = time.process_time if device == "cpu" else time.perf_counter
    for number, arm in alternate([DEVICE, NUMPY], rounds):
        begin = clock()
        results[arm] = fit(device if arm == DEVICE else None)
        seconds = clock() - begin
        if number:  # round 0 warms up
            rows.append({"fit": name, "round": number, "arm": arm, "seconds": seconds})
    difference = np.abs(results[DEVICE] - results[NUMPY]).max() / np.abs(results[NUMPY]).max()
    if not difference < CLOSE:
        raise WorkbenchError(f"{name} on {device} differs from NumPy by {difference:.1e}")
    return rows


def fits(rows: int, features: int) -> dict[str, Callable[[str | None], Any]]:
    """Return fits on one set of rows: functions of the device, which return the results, by their names."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, features))
    slope = random.normal(size=features)
    y = X @ slope + random.normal(size=rows)
    labels = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    centers = X[:8].copy()
    components = min(8, features - 1)
    return {
        "KMeans": lambda device: ml.KMeans(8, init=centers, max_iter=10, tol=0, device=device).fit(X).inertia_,
        "LogisticRegression, 2 classes": lambda device: _slopes(ml.LogisticRegression(device=device), X, labels > 0),
        "LogisticRegression, 3 classes": lambda device: _slopes(ml.LogisticRegression(device=device), X, labels),
        "LinearRegression": lambda device: _slopes(ml.LinearRegression(device=device), X, y),
        "PCA": lambda device: ml.PCA(components, device=device).fit(X).singular_values_,
        "TruncatedSVD": lambda device: ml.TruncatedSVD(components, device=device).fit(X).singular_values_,
        "StandardScaler": lambda device: ml.StandardScaler(device=device).fit(X).var_,
    }


def _slopes(model: Any, X: Any, y: Any) -> Any:
    return model.fit(X, y).coef_


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of the paired ratios for each fit, with their intervals, and the median times with NumPy."""
    summary: dict[str, Any] = {}
    for name in dict.fromkeys(row["fit"] for row in rows):
        times = {
            arm: [row["seconds"] for row in sorted(rows, key=lambda row: row["round"]) if _is(row, name, arm)]
            for arm in (DEVICE, NUMPY)
        }
        summary |= measuring.figures(name, times[DEVICE], times[NUMPY])
        summary[f"{name}_seconds"] = statistics.median(times[NUMPY])
    return summary | {"target": TARGET}


def _is(row: dict[str, Any], name: str, arm: str) -> bool:
    return bool(row["fit"] == name and row["arm"] == arm)
