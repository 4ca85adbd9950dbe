"""In which order tests run: those that share what is dear to start together, and within a module by chance.

The seed is printed, and ``WORKBENCH_TEST_SEED`` brings an order back. Modules whose tests form one sequence, each
starting where the one before it has ended, are marked ``in_order``.
"""

from __future__ import annotations

import os
import random
from itertools import groupby
from typing import Any

import pytest

# The tests of each of these folders stay in one process: they share a Slurm, the worlds of one size, a JupyterLab, the
# syntax trees of the package.
TOGETHER = ("slurm", "mpi", "browser", "contracts")
# How the paths below `tests` begin of what takes longest, in the order to start: then the processes end together.
LONGEST = ("slurm", "mpi", "browser", "cluster/test_torch", "cluster")
_SEED = "WORKBENCH_TEST_SEED"


def pytest_configure() -> None:
    """Draw the seed, which the processes of ``pytest -n`` inherit: all of them have to collect in one order."""
    os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(10**6)))


def pytest_report_header() -> str:
    """Print the seed."""
    return f"order of the tests of a module: {_SEED}={os.environ[_SEED]}"


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests of each module, and put what takes longest first."""
    shuffled: list[pytest.Item] = []
    for path, group in groupby(items, lambda item: item.path):
        of_module = list(group)
        if of_module[0].get_closest_marker("in_order") is None:
            random.Random(f"{os.environ[_SEED]} {path.name}").shuffle(of_module)
        shuffled += of_module
    paths = {item: item.path.relative_to(config.rootpath / "tests").as_posix() for item in shuffled}
    for item, path in paths.items():
        if path.startswith("mpi/"):
            item.add_marker("mpi_flavor")
    places = {item: [path.startswith(begin) for begin in (*LONGEST, "")].index(True) for item, path in paths.items()}
    items[:] = sorted(shuffled, key=places.__getitem__)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have the tests of a module, or of a folder of `TOGETHER`, run in one process."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            folder = file.split("/")[1]
            return folder if folder in TOGETHER else file

    config.option.loadscopereorder = False
    return Scheduling(config, log)
