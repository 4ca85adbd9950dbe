"""The dashboard of a real cluster, from the port of Jupyter and in a separate browser."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from support.processes import DEADLINE

import workbench
from workbench import MPICluster, place, run_on_ranks
from workbench.ml import KMeans

# Those that say something else of a real training than of a simulated one.
PAGES = {
    "Overview": ("CPU of each rank", "2 of 2"),
    "Communication": ("Who sends to whom", "Where time in MPI goes"),
    "Training": ("Time of each step",),
}
# A picture shows a program that has run for a while: moments that the dashboard shows, seconds of a training step, and
# those between two exchanges, without which the ranks would leave no core to the browser.
SEEN, STEP, PAUSE = (45, 0.1, 0.0) if "WORKBENCH_SHOTS" in os.environ else (1, 0.0, 1.0)


@pytest.fixture
def cluster():
    """Give a cluster whose ranks have trained."""
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        X = place(da.random.default_rng(0).random((2_000, 8), chunks=(1_000, 8)), client=client)
        KMeans(2, engine="mpi", random_state=0, max_iter=5, tol=1.0).fit(X)
        yield cluster


@contextmanager
def dashboard(cluster):
    """Serve the dashboard of a cluster, and give its address."""
    command = [sys.executable, "-m", "workbench", "dashboard", cluster.record.name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(DEADLINE)


def test_the_pages_of_a_real_cluster_show_what_it_does(cluster, viewer, shot):
    with dashboard(cluster) as address:
        viewer.open(address)
        for title, headings in PAGES.items():
            viewer.turn_to(title)
            for heading in headings:
                viewer.sees(heading)
            viewer.painted()
            viewer.moves()
            shot(viewer.page, f"live-{title.lower()}", full_page=True)
        viewer.page.get_by_text("KMeans", exact=True).first.wait_for()
        viewer.turn_to("Dask")
        # drawn, so its websocket is led there, too
        viewer.page.frame_locator("iframe").locator("canvas").first.wait_for()
        assert viewer.complaints == []
        assert {urlsplit(url).netloc for url in viewer.requests} <= {urlsplit(address).netloc, ""}
        cluster.close()
        viewer.turn_to("Overview")
        viewer.sees("has ended")


def train_and_hang(comm, steps, seconds, file):
    """Report a loss per step; then rank 3 comes to the last reduction only when there is a file."""
    for step in range(steps):
        end = time.monotonic() + seconds * (1 - 0.1 * comm.rank)
        while time.monotonic() < end:
            np.sort(np.arange(10_000) % 97)
        comm.allreduce(1)
        if comm.rank == 0:
            workbench.report(step, name="fit", loss=0.7 * 0.9**step + 0.1, accuracy=0.95 - 0.4 * 0.92**step)
    while comm.rank == 3 and not Path(file).exists():
        time.sleep(0.05)
    return comm.allreduce(1)


def send_around(comm, messages):
    """Send arrays of many sizes to the next rank, and reduce them."""
    for number in range(messages):
        sent = np.zeros(1 << (number % 16))
        comm.Sendrecv(
            sent, (comm.rank + 1) % comm.size, recvbuf=np.empty_like(sent), source=(comm.rank - 1) % comm.size
        )
        comm.Allreduce(sent, np.empty_like(sent))


def exchange(client):
    """Have Dask send columns of placed rows between the ranks, and the ranks send arrays over MPI."""
    X = place(da.random.default_rng(0).random((40_000, 64), chunks=(10_000, 64)), client=client)
    client.compute(X.rechunk((40_000, 16)).sum()).result(DEADLINE)
    run_on_ranks(send_around, 64, client=client)


def keep_exchanging(client, enough):
    """Exchange until it is enough."""
    while not enough.wait(PAUSE):
        exchange(client)


def in_both_themes(viewer, shot, name, moments=1):
    """Keep pictures of a dashboard after some moments, one in each theme; the light one is first and last."""
    for _ in range(moments):
        viewer.moves()
    for theme, other in (("light", "Dark"), ("dark", "Light")):
        viewer.painted()
        shot(viewer.page, f"{name}-{theme}", full_page=True)
        viewer.page.get_by_role("button", name=other).click()
        viewer.page.get_by_role("button", name={"Dark": "Light", "Light": "Dark"}[other]).wait_for()


def test_a_call_that_hangs_is_explained_and_its_training_is_drawn(viewer, shot, tmp_path):
    go, enough = tmp_path / "go", Event()
    with (
        MPICluster(4, name="flights", quiet=True) as cluster,
        Client(cluster) as client,
        ThreadPoolExecutor(1) as pool,
        dashboard(cluster) as address,
    ):
        exchange(client)
        traffic = pool.submit(keep_exchanging, client, enough)
        try:
            # A picture of a whole page is at least as high as the window.
            viewer.page.set_viewport_size({"width": 1400, "height": 600})
            viewer.open(address)
            viewer.page.get_by_text("1 min", exact=True).click()
            viewer.turn_to("Communication")
            viewer.page.get_by_text("Since the start", exact=True).click()
            viewer.sees("Sent bytes since the start, Dask and MPI")
            in_both_themes(viewer, shot, "communication", SEEN)
            enough.set()
            traffic.result(DEADLINE)
            call = pool.submit(run_on_ranks, train_and_hang, 60, STEP, str(go), client=client, result="root")
            viewer.turn_to("Waiting")
            viewer.sees("Ranks 0-2 have been in allreduce")
            viewer.sees("wait for rank 3, which is in")
            in_both_themes(viewer, shot, "hang", -(-SEEN // 4))
            viewer.turn_to("Training")
            viewer.sees("accuracy")
            in_both_themes(viewer, shot, "training")
            assert viewer.complaints == []
        finally:
            enough.set()
            go.touch()

        assert call.result(DEADLINE) == 4
