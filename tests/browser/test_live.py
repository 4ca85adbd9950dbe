"""The dashboard of a real cluster, from Jupyter's own port and in a browser of its own."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import urlsplit

import dask.array as da
import pytest
from distributed import Client
from support.processes import DEADLINE

from workbench import MPICluster, place
from workbench.ml import KMeans

# Those that say something else of a real training than of a simulated one.
PAGES = {
    "Overview": ("CPU of each rank", "2 of 2"),
    "Communication": ("Who sends to whom", "Where time in MPI goes"),
    "Training": ("Time of each step",),
}


@pytest.fixture
def cluster():
    """Give a cluster whose ranks have trained."""
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        X = place(da.random.default_rng(0).random((2_000, 8), chunks=(1_000, 8)), client=client)
        KMeans(2, engine="mpi", random_state=0, max_iter=5, tol=1.0).fit(X)
        yield cluster


def test_the_pages_of_a_real_cluster_show_what_it_does(cluster, viewer, shot):
    command = [sys.executable, "-m", "workbench", "dashboard", cluster.record.name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
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
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(DEADLINE)
