"""In which order tests run: those that share what is dear to start together, and within a module by chance.

The seed is printed, and ``WORKBENCH_TEST_SEED`` brings an order back. Modules whose tests tell one story, each going on
where the one before it has ended, are marked ``in_order``.
"""

from __future__ import annotations

import os
import random
from itertools import groupby
from typing import Any

import pytest

# The tests of each of these folders stay in one process: they share a Slurm, the worlds of one size, a JupyterLab.
TOGETHER = ("slurm", "mpi", "browser")
# What takes longest begins, so that the processes end together.
LONGEST = (*TOGETHER, "cluster")
_SEED = "WORKBENCH_TEST_SEED"


def pytest_configure() -> None:
    """Draw the seed, which the processes of ``pytest -n`` inherit: all of them have to collect in one order."""
    os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(10**6)))


def pytest_report_header() -> str:
    """Print the seed."""
    return f"order of the tests of a module: {_SEED}={os.environ[_SEED]}"


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests of each module, and put the folders that take longest first."""
    shuffled: list[pytest.Item] = []
    for path, group in groupby(items, lambda item: item.path):
        of_module = list(group)
        if of_module[0].get_closest_marker("in_order") is None:
            random.Random(f"{os.environ[_SEED]} {path.name}").shuffle(of_module)
        shuffled += of_module
    folders = {item: item.path.relative_to(config.rootpath / "tests").parts[0] for item in shuffled}
    for item, folder in folders.items():
        if folder == "mpi":
            item.add_marker("mpi_flavor")
    items[:] = sorted(shuffled, key=lambda item: [*LONGEST, folders[item]].index(folders[item]))


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
