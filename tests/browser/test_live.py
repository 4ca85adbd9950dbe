"""The dashboard of a real cluster that trains, from Jupyter's own port and in a browser of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from urllib.parse import urlsplit

import dask.array as da
import pytest
from browser.test_dashboard import PAGES
from distributed import Client
from support.processes import DEADLINE

from workbench import MPICluster, place
from workbench.ml import KMeans


@pytest.fixture
def training():
    """Give a cluster whose ranks train, and what ends that."""
    over = threading.Event()
    with MPICluster(4, quiet=True) as cluster, Client(cluster) as client:
        X = place(da.random.default_rng(0).random((40_000, 8), chunks=(10_000, 8)), client=client)

        def train():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it does not converge, for it is to go on
                for seed, engine in enumerate(["mpi", "dask"] * 1000):
                    KMeans(8, engine=engine, random_state=seed, max_iter=20, tol=0).fit(X)
                    # the ranks are not to take all cores from the browser
                    if over.wait(0.5):
                        return

        thread = threading.Thread(target=train)

        def end():
            over.set()
            thread.join(DEADLINE)
            assert not thread.is_alive()

        thread.start()
        yield cluster, end
        end()


def test_every_page_of_a_real_training_shows_it(training, viewer, shots):
    cluster, end = training
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
            if title != "Dask":
                viewer.moves()
            viewer.page.screenshot(path=shots / f"live-{title.lower()}.png", full_page=True)
        viewer.turn_to("Training")
        viewer.page.get_by_text("KMeans", exact=True).first.wait_for()
        viewer.turn_to("Overview")
        viewer.sees("4 of 4")
        viewer.turn_to("Dask")
        # drawn, so its websocket is led there, too
        viewer.page.frame_locator("iframe").locator("canvas").first.wait_for()
        assert viewer.complaints == []
        assert {urlsplit(url).netloc for url in viewer.requests} <= {urlsplit(address).netloc, ""}
        end()
        cluster.close()
        viewer.turn_to("Overview")
        viewer.sees("has ended")
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(DEADLINE)
