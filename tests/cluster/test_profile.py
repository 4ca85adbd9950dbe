"""Profiles of a cluster: from Python, from a notebook and from a terminal."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from support import metered
from support.processes import DEADLINE, until
from support.shell import ipython

from workbench import MPICluster, cli, run_on_ranks, spmd
from workbench.errors import InvalidRequest, PlacementError
from workbench.metrics.profile import Profile
from workbench.metrics.profile_frame import ProfileFrame


@pytest.fixture
def client(client4):
    return client4


def is_locating(client):
    """Return whether ranks look from where MPI is called."""
    [told] = set(client.run(lambda dask_worker: dask_worker.activity.meter.locate is not None).values())
    return told


@pytest.mark.mpi_flavor
def test_calls_bytes_and_times_of_each_rank_are_those_of_the_block(client):
    run_on_ranks(metered.ring, [7] * 4, client=client)
    with Profile(client) as its:
        run_on_ranks(metered.ring, [10, 200, 3000, 40_000], client=client)
        run_on_ranks(metered.come_late, 8, client=client)
    frame = its.frame

    assert frame["rank"].tolist() == [0, 1, 2, 3]
    assert frame["bytes"].tolist() == [size + 9 * 24 for size in (10, 200, 3000, 40_000)]
    assert frame["messages"].tolist() == [1 + 9 * 3] * 4
    operations = frame.operations.set_index("operation")
    assert operations["calls"].to_dict() == {"Allreduce": 36, "Sendrecv": 4}
    assert operations["bytes"].to_dict() == {"Allreduce": 36 * 24, "Sendrecv": 43_210}
    # rank 0 is late by 0.8 seconds in all, and the others wait for it, unless they are late themselves
    assert (frame["mpi"][1:] > 0.4).all()
    assert (frame["seconds"] > 0.8).all()
    assert frame["compute"][0] > 0.75
    assert (frame["top_operation"][1:] == "Allreduce").all()
    assert frame["mpi_percent"][1] == pytest.approx(100 * frame["mpi"][1] / frame["seconds"][1])
    assert operations["percent"].sum() == pytest.approx(100)
    assert operations["seconds"].sum() == pytest.approx(frame["mpi"].sum())


@pytest.mark.mpi_flavor
@pytest.mark.parametrize(("times", "seconds"), [(1, 1.0), (10, 0.1)])
def test_ranks_wait_for_one_that_comes_late_and_it_waits_for_none(client, times, seconds):
    def coarsest():
        return max(client.run(lambda dask_worker: dask_worker.activity.meter.total.mask).values())

    until("no call to be left out for many short ones before it", lambda: coarsest() == 0)
    run_on_ranks(metered.let_wait, 1, 0.5, client=client)  # before the profile, and not yet received by the head
    with Profile(client) as its:
        run_on_ranks(metered.let_wait, times, seconds, client=client)
    frame = its.frame

    others = frame[frame["rank"] != 1]
    assert (others["waiting"] > 0.5 * times * seconds).all()
    assert (others["waiting"] <= others["mpi"] * 1.001).all()
    assert frame["waiting"][1] < 0.5 * others["waiting"].min()


def test_who_waits_for_a_message_waits_in_the_operation_that_does_nothing_else(client):
    def exchange(comm):
        if comm.rank == 1:
            time.sleep(1)
            comm.Send(np.ones(1), 0)
        elif comm.rank == 0:
            comm.Irecv(np.zeros(1), 1).Wait()

    with Profile(client) as its:
        run_on_ranks(exchange, client=client)

    assert its.frame["waiting"][0] > 0.5
    assert its.frame["waiting"][0] <= its.frame["mpi"][0]
    assert (its.frame["waiting"][1:] < 0.5).all()


def test_call_sites_are_lines_of_the_code_of_the_user(client):
    def exchange(comm):
        comm.sendrecv(comm.rank, (comm.rank + 1) % comm.size)
        for _ in range(3):
            comm.Barrier()
        comm.isend("x" * 100, 0).wait()
        if comm.rank == 0:
            for _ in range(comm.size):
                comm.recv()

    first = exchange.__code__.co_firstlineno
    with Profile(client) as its:
        run_on_ranks(exchange, client=client)
        run_on_ranks(lambda comm: comm.Barrier(), client=client)
    sites = its.frame.sites.set_index(["operation", "place"])

    lines = {("sendrecv", 1): 4, ("Barrier", 3): 12, ("isend", 4): 4, ("wait", 4): 4, ("recv", 7): 4}
    calls = {(operation, f"test_profile.py:{first + line}"): number for (operation, line), number in lines.items()}
    calls["Barrier", f"test_profile.py:{first + 12}"] = 4
    assert sites["calls"].to_dict() == calls
    assert 400 < sites["bytes"]["isend"].item() < 600
    assert sites["seconds"].sum() == pytest.approx(its.frame["mpi"].sum())


def test_tasks_of_dask_are_computing(client):
    with Profile(client) as its:
        client.submit(metered.spin, 0.5, workers=[3], pure=False).result(DEADLINE)

    assert 0.5 <= its.frame["compute"][3] <= its.frame["seconds"][3]
    assert its.frame["mpi"].tolist() == [0.0] * 4
    assert len(its.frame.sites) == 0


def test_profiles_of_two_clients_know_nothing_of_each_other(cluster4, client):
    with Client(cluster4, set_as_default=False) as other:
        outer, inner = Profile(client), Profile(other)
        with outer:
            run_on_ranks(metered.ring, [1] * 4, client=client)
            with inner:
                run_on_ranks(metered.ring, [1] * 4, client=client)
            assert is_locating(client)
            run_on_ranks(metered.ring, [1] * 4, client=client)
        assert not is_locating(client)

    assert [its.frame.operations["calls"].tolist() for its in (outer, inner)] == [[12, 12], [4, 4]]
    assert [its.frame.sites["calls"].tolist() for its in (outer, inner)] == [[12, 12], [4, 4]]


def test_a_block_that_fails_is_measured_until_then(client):
    profile = Profile(client)
    with pytest.raises(InvalidRequest):
        _ = profile.frame

    def fail():
        run_on_ranks(metered.ring, [1] * 4, client=client)
        _ = 1 / 0

    with pytest.raises(ZeroDivisionError), profile:
        fail()

    assert sorted(profile.frame.operations["operation"]) == ["Allreduce", "Sendrecv"]
    assert not is_locating(client)


def test_ranks_that_count_nothing_cannot_be_profiled(client):
    def count(dask_worker, enabled):
        dask_worker.activity.enabled = enabled

    client.run(count, enabled=False)
    try:
        with pytest.raises(InvalidRequest), Profile(client):
            pass
    finally:
        client.run(count, enabled=True)


def test_ranks_that_are_not_there_all_the_time_are_left_out_and_named():
    with MPICluster(1, quiet=True) as cluster, Client(cluster) as client:
        with Profile(client) as its:
            cluster.scale(2)
            cluster.restart()
        assert repr(its.frame).startswith("0 ranks, ")
        assert its.frame.missing == ["rank 0"]


# -- in a notebook and in a terminal ---------------------------------------------------------------------------


@pytest.fixture
def shell(client):
    with ipython() as shell:
        shell.push({"client": client})
        yield shell


CELL = """%%mpi_profile --out taken
from workbench import run_on_ranks

def meet(comm):
    comm.Barrier()

run_on_ranks(meet, client=client)
4 * 4"""


def test_a_cell_runs_in_the_notebook_and_its_profile_is_shown_once_and_is_its_value(shell, capsys):
    result = shell.run_cell(CELL, store_history=True)

    shown = capsys.readouterr().out
    assert "16\n" in shown
    assert shown.count("top operation") == 1
    assert isinstance(result.result, ProfileFrame)
    assert isinstance(result.result, pd.DataFrame)
    assert shell.user_ns["taken"] is shell.user_ns["_"] is result.result
    assert callable(shell.user_ns["meet"])
    [(operation, calls)] = result.result.operations[["operation", "calls"]].to_numpy().tolist()
    assert (operation, calls) == ("Barrier", 4)
    assert result.result.sites["calls"].tolist() == [4]


def test_a_cell_on_all_ranks_can_be_profiled(shell):
    result = shell.run_cell("%%mpi_profile\n%%mpi\ndef meet():\n    comm.Barrier()\nmeet()").result

    assert result.sites[["operation", "place", "calls"]].to_numpy().tolist() == [
        ["Barrier", "line 2 of the cell with meet", 4]
    ]


def test_the_error_of_a_cell_comes_through_and_what_was_measured_is_shown(shell, capsys):
    result = shell.run_cell(CELL + "\n1 / 0")

    assert isinstance(result.error_in_exec, ZeroDivisionError)
    shown = capsys.readouterr().out
    assert "line 9" in shown
    assert shown.count("top operation") == 1
    assert shell.user_ns["taken"].operations["calls"].tolist() == [4]


def test_a_cell_that_is_interrupted_shows_what_was_measured(shell, client, capsys, tmp_path):
    shell.push({"wait": spmd(client=client)(metered.wait_for), "file": tmp_path / "never"})

    def waiting():
        told = client.run(lambda dask_worker: (now := dask_worker.activity.now) and now[1].operation).values()
        return list(told).count("Barrier") == 3

    def interrupt():
        until("three ranks to wait", waiting)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = shell.run_cell("%%mpi_profile --out taken\nwait(file)")
    thread.join()

    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "top operation" in capsys.readouterr().out
    assert shell.user_ns["taken"]["top_operation"].tolist() == ["", "Barrier", "Barrier", "Barrier"]
    assert not is_locating(client)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--out 1x",
            "the arguments are not valid. Usage: %%mpi_profile [--out NAME], where NAME is a name",
        ),
        ("x", "the arguments are not valid"),
        ("--out", "the arguments are not valid"),
    ],
)
def test_a_first_line_that_cannot_be_is_refused_and_the_cell_does_not_run(shell, capsys, line, message):
    shell.run_cell(f"%%mpi_profile {line}\nran = True")

    said = capsys.readouterr()
    assert f"UsageError: %%mpi_profile {line}: {message}" in said.err
    assert "ran" not in shell.user_ns


def test_without_a_cluster_it_is_told_what_to_do():
    with pytest.raises(PlacementError), Profile():
        pass


def test_everything_since_the_start_is_told_without_a_profile(cluster4, client, shell, capsys):
    run_on_ranks(metered.ring, [1] * 4, client=client)
    shell.run_line_magic("mpicluster", "profile shared")
    assert "% in MPI" in capsys.readouterr().out

    assert cli.main(["profile", "shared", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [its["rank"] for its in told["ranks"]] == [0, 1, 2, 3]
    assert {"Sendrecv", "Allreduce"} <= {its["operation"] for its in told["operations"]}

    assert cli.main(["profile", "shared"]) == 0
    assert "% of MPI" in capsys.readouterr().out
