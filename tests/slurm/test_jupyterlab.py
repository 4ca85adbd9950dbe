"""A cluster through a live SLURM, by the JupyterLab extension in a browser."""

from __future__ import annotations

import pytest
from browser.chromium import running_chromium
from browser.lab import Worker, end_clusters, started
from support.processes import until

NAME = "lab-slurm"


@pytest.fixture
def lab(slurm, tmp_path):
    with started(tmp_path) as lab:
        yield lab
        end_clusters(NAME)


@pytest.fixture
def worker(lab):
    with running_chromium() as chromium:
        worker = Worker.at(lab, chromium)
        worker.show_clusters()
        yield worker
        worker.leave()


@pytest.fixture
def before(slurm):
    """Return a job that has all nodes."""
    job = slurm.submit("sleep 4711", "--nodes=4", "--exclusive")
    yield job
    if job in slurm.jobs():
        slurm.run("scancel", job)


def test_a_cluster_of_the_dialog_waits_in_the_queue_says_why_and_starts(slurm, worker, before):
    worker.do("workbench:new-cluster")
    worker.fill(scheduler="slurm", ranks="4", nodes="2", walltime="20 minutes", name=NAME)
    worker.script("#SBATCH --nodes=2")
    worker.dialog().locator(".wb-Verdict", has_text="slurm says: would").wait_for()

    worker.answer("Start")

    worker.dialog().wait_for(state="detached")
    card = worker.card(NAME)
    card.get_by_text("waits: ").wait_for()
    card.get_by_text("queued", exact=True).wait_for()
    (job,) = set(slurm.jobs()) - {before}
    card.get_by_text(f"slurm · job {job} · 2 nodes").wait_for()

    slurm.run("scancel", before)

    card.get_by_text("4 ranks", exact=True).wait_for()
    card.get_by_text("of walltime left").wait_for()
    worker.press(NAME, "stop")
    worker.answer("Stop")
    card.wait_for(state="detached")
    until("the job has ended", lambda: job not in slurm.jobs())
    assert worker.faults() == []
