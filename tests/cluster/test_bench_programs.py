"""Programs of the benches on separate worlds, at a tiny size."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from support import torched
from support.processes import DEADLINE, GONE_WITHIN, gone, until
from support.raised import raises

from benchmarks import apps
from workbench import bench
from workbench.bench import bare, collectives, kernel, transport, turns, world
from workbench.errors import InvalidRequest, LaunchError
from workbench.launch import mpi_library


@pytest.fixture
def started_here():
    """Return what lists the processes that the test has started; the session may have some."""
    this = psutil.Process()
    before = set(this.children(recursive=True))
    return lambda: [process for process in this.children(recursive=True) if process not in before]


def _run(module, *words):
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    return module.run(parser.parse_args(words))


def test_what_rank_0_returns_comes_back():
    assert world.run(mpi_library.find(), 2, "support.rank_program", {"way": "well"}, 60) == 1


def test_an_error_on_any_rank_ends_the_world_and_is_shown():
    with pytest.raises(LaunchError, match=r"ended with code(.|\n)*ValueError: no such thing on rank 1"):
        world.run(mpi_library.find(), 2, "support.rank_program", {"way": "fail"}, 60)


def test_a_world_that_takes_too_long_is_ended():
    with pytest.raises(LaunchError):
        world.run(mpi_library.find(), 2, "support.rank_program", {"way": "hang"}, 1)


@pytest.mark.mpi_flavor
def test_transport_measures_all_arms_at_all_sizes():
    report = _run(transport, "--sizes=1,64KiB,2MiB", "--rounds=2")

    assert [row["nbytes"] for row in report.rows] == [1, 2**16, 2**21]
    times = [row[f"{arm}_us"] for row in report.rows for arm in ("tcp", "mpi", "raw", "tls", "mpi_tls")]
    assert min(times) > 0
    assert report.summary["aligned"] is True
    figures = ("small", "large", "of_raw", "small_tls", "large_tls", "kernel", "kernel_tcp")
    assert min(report.summary[figure] for figure in figures) > 0


@pytest.mark.long
def test_apps_measures_bare_clusters_alone_if_asked_to():
    report = _run(apps, "--pairs=1", "--scale=0.01", "--plain-only")

    assert {row["arm"] for row in report.rows} == {"tcp", "mpi"}
    assert min(report.summary[app] for app in ("transpose", "merge", "svd")) > 0
    assert report.summary["svd_tls"] is None


@pytest.mark.mpi_flavor
def test_workers_of_bare_clusters_speak_what_they_are_asked_to():
    with bare.start(mpi_library.find(), "mpi", 2) as client:
        addresses = list(client.nthreads())

    assert len(addresses) == 2
    assert all(address.startswith("mpi://127.0.0.1:") for address in addresses)


def test_a_bare_cluster_that_cannot_start_shows_why_and_leaves_nothing(started_here):
    with (
        pytest.raises(LaunchError, match=r"ended before all workers were there(.|\n)*carrier-pigeon"),
        bare.start(mpi_library.find(), "carrier-pigeon", 2),
    ):
        pass

    assert started_here() == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_everything_that_apps_has_started(number):
    words = [sys.executable, "-m", "benchmarks", "apps", "--plain-only"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True) as command:
        try:
            this = psutil.Process(command.pid)
            # The schedulers are there too, once there are two worlds.
            until("two worlds", lambda: len(this.children()) == 2)
            started = this.children(recursive=True)
            os.killpg(command.pid, number)
            command.communicate(timeout=DEADLINE)
        finally:
            command.kill()

    assert command.returncode == 130
    until("the end of all", lambda: all(map(gone, started)), GONE_WITHIN)


def test_collectives_measures_all_operations_for_both_kinds_of_data_prints_json_and_draws(capsys, tmp_path):
    picture = tmp_path / "bench.png"
    words = ["collectives", "--ranks=2", "--sizes=8,1KiB", "--seconds=0.01", "--json", f"--plot={picture}"]

    assert bench.main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bench"] == "collectives"
    _measures_all_operations(report["rows"], report["summary"])
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_collectives_measures_other_kinds_of_buffers():
    report = _run(collectives, "--sizes=8,512KiB", "--seconds=0.01", "--buffers=torch")

    assert report.machine["buffers"] == "torch"
    assert all(row["torch_us"] > 0 < row["ours_us"] for row in report.rows)
    assert report.summary["allreduce_small_extra_us"] is not None


def test_collectives_measures_an_odd_number_of_ranks():
    # One size: three ranks take turns on two cores, with a switch for each message.
    report = _run(collectives, "--ranks=3", "--sizes=8", "--seconds=0.01")
    _measures_all_operations(report.rows, report.summary, sizes=[8])


def _measures_all_operations(rows, summary, sizes=(8, 1024)):
    operations = ["latency", "bandwidth", "Bcast", "Allreduce", "Allgather", "Alltoall"]
    assert [(row["operation"], row["nbytes"]) for row in rows] == [
        (operation, nbytes) for operation in operations for nbytes in sizes
    ]
    columns = ("numpy_us", "ours_us", "pickle_us", "numpy_gb_s")
    assert min(row[column] for row in rows for column in columns) > 0
    assert isinstance(summary["allreduce_small_extra_us"], float)


@pytest.mark.long
def test_collectives_measures_torch_against_mpi():
    report = _run(collectives, "--torch", "--sizes=8,1MiB", "--seconds=0.01")

    assert len(report.rows) == 2 * len(torched.OPERATIONS)
    assert report.machine["torch"]
    assert isinstance(report.summary["torch_small_extra_us"], float)
    assert report.summary["all_reduce_large_ratio"] > 0


@pytest.mark.parametrize(
    "kind",
    [
        "bytes",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("memoryview", "torch")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_transport_measures_other_kinds_of_buffers(kind):
    report = _run(transport, "--sizes=64,2MiB", "--rounds=1", f"--buffers={kind}")

    assert report.machine["buffers"] == kind
    assert all(row["mpi_us"] > 0 < row["raw_us"] for row in report.rows)


def test_buffers_of_a_gpu_are_refused_where_there_is_none(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises(InvalidRequest, option="buffers"):
        _run(transport, "--buffers=cuda")


def test_collectives_of_mpi_on_a_device_are_refused():
    with raises(InvalidRequest, option="device", given="cuda"):
        _run(collectives, "--device=cuda")


@pytest.mark.gpu
def test_collectives_measures_torch_on_a_gpu_against_copies():
    report = _run(collectives, "--torch", "--device=cuda", "--sizes=8,1MiB", "--seconds=0.01")

    assert len(report.rows) == 2 * len(torched.OPERATIONS)
    assert min(row[f"{kind}_us"] for row in report.rows for kind in ("mpi", "torch", "copied")) > 0
    assert report.summary["all_reduce_large_of_copied"] > 0


def test_collectives_of_one_rank_are_refused():
    with raises(InvalidRequest, option="ranks", given=1):
        _run(collectives, "--ranks=1")


@pytest.mark.mpi_flavor
def test_a_bare_world_takes_turns_with_the_kernel():
    with turns.taking(mpi_library.find(), 2, kernel.__name__, DEADLINE, rows=100) as its:
        once, again = its.take(1, DEADLINE), its.take(2, DEADLINE)

    assert [turn.setting for turn in once + again] == [once[0].setting] * 4
    assert min(turn.seconds for turn in once + again) > 0
    for first, second in zip(once, again, strict=True):
        assert np.array_equal(first.gradient, second.gradient)
    assert not np.array_equal(once[0].gradient, once[1].gradient)


def test_a_bare_world_that_dies_shows_it_and_leaves_nothing(started_here):
    def kill_and_ask():
        with turns.taking(mpi_library.find(), 2, kernel.__name__, DEADLINE, rows=100) as its:
            for process in started_here():
                process.kill()
            its.take(1, DEADLINE)

    with pytest.raises(LaunchError):
        kill_and_ask()

    assert started_here() == []


def test_a_bare_world_that_cannot_start_shows_why():
    with (
        pytest.raises(LaunchError, match=r"ended before all of its ranks were there(.|\n)*negative dimensions"),
        turns.taking(mpi_library.find(), 2, kernel.__name__, DEADLINE, rows=-1),
    ):
        pass
