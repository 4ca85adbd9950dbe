"""What calls keep after calls that end by errors, or that have other ranks."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from distributed import Client
from support.patience import DEADLINE
from support.processes import until

import workbench
from workbench import MPICluster, run_on_ranks, spmd


@pytest.fixture
def cluster(tmp_path):
    """A cluster of two ranks that writes what calls keep at each `keep`."""
    with MPICluster(2, checkpoint=str(tmp_path / "kept"), every=0.001, quiet=True) as cluster, Client(cluster):
        yield cluster


def keep_steps(comm, steps, failing=None):
    for step in range(steps):
        if comm.rank == 1 and step == failing:
            raise ArithmeticError
        time.sleep(0.01)  # so that the next version is due
        workbench.keep(comm, state=(step, np.full(3, step)))
    return step


def saved():
    """What a save of the head writes of the calls."""
    workbench.keep(note="a save")
    return [step for step, _ in workbench.restore().state]


@pytest.mark.usefixtures("cluster")
def test_values_are_kept_again_after_a_call_that_failed_between_two_of_them():
    with pytest.raises(ArithmeticError):
        run_on_ranks(keep_steps, 3, failing=2)
    run_on_ranks(keep_steps, 5)
    assert [step for step, _ in run_on_ranks(lambda comm: workbench.kept(comm, "state"))] == [4, 4]
    assert saved() == [4, 4]


@pytest.mark.usefixtures("cluster")
def test_calls_on_other_ranks_keep_values_of_the_same_name():
    for ranks, steps in (([0], 2), ([1], 3), (None, 5), ([1], 7), ([0, 1], 9)):
        run_on_ranks(keep_steps, steps, ranks=ranks, timeout=DEADLINE)
        assert saved() == [steps - 1] * len(ranks or (0, 1))


@pytest.mark.usefixtures("cluster")
def test_a_version_that_other_ranks_have_begun_is_given_up():
    for begun in (2, 3):  # the last `keep` begins a version, or completes one
        run_on_ranks(keep_steps, begun, ranks=[0])  # no save of the head before the next call
        run_on_ranks(keep_steps, 20, timeout=DEADLINE)
        assert [step for step, _ in run_on_ranks(lambda comm: workbench.kept(comm, "state"))] == [19, 19]


def test_blocks_that_another_process_has_moved_to_one_rank_do_not_end_the_saves_of_others(cluster):
    workbench.keep(X=workbench.place(np.arange(8.0)))
    other = MPICluster.attach(cluster.name, quiet=True)
    other.scale(1)
    other.close()
    workbench.keep(note="a save")
    assert workbench.restore(None, "note").note == "a save"
    np.testing.assert_array_equal(workbench.restore(None, "X").X.compute(), np.arange(8.0))


def test_a_call_that_has_kept_nothing_yet_is_asked_to_stop(cluster, tmp_path):
    @spmd(result="root")
    def wait(comm):
        (tmp_path / f"{comm.rank}").touch()
        end = time.monotonic() + DEADLINE
        while not (stops := workbench.should_stop(comm)) and time.monotonic() < end:
            time.sleep(0.05)
        return stops

    running = wait.submit()
    until("the call runs", lambda: all((tmp_path / rank).exists() for rank in "01"))
    os.kill(cluster.record.process.pid, signal.SIGUSR1)
    assert running.result(2 * DEADLINE)
