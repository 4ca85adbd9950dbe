"""Programs of the benches on worlds of their own, at a tiny size."""

from __future__ import annotations

import argparse
import json

import pytest

from workbench import bench
from workbench.bench import collectives, transport, world
from workbench.errors import InvalidRequest, LaunchError
from workbench.launch import mpi


def _run(module, *words):
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    return module.run(parser.parse_args(words))


def test_what_rank_0_returns_comes_back():
    assert world.run(mpi.find(), 2, "support.rank_program", {"way": "well"}, 60) == 1


def test_an_error_on_any_rank_ends_the_world_and_is_shown():
    with pytest.raises(LaunchError, match=r"ended with code(.|\n)*ValueError: no such thing on rank 1"):
        world.run(mpi.find(), 2, "support.rank_program", {"way": "fail"}, 60)


def test_a_world_that_takes_too_long_is_ended():
    with pytest.raises(LaunchError, match="on 2 ranks was not done after 3 s"):
        world.run(mpi.find(), 2, "support.rank_program", {"way": "hang"}, 3)


def test_transport_measures_all_arms_at_all_sizes():
    report = _run(transport, "--sizes=1,64KiB,2MiB", "--rounds=2")

    assert [row["nbytes"] for row in report.rows] == [1, 2**16, 2**21]
    times = [row[f"{arm}_us"] for row in report.rows for arm in ("tcp", "mpi", "raw", "tls", "mpi_tls")]
    assert min(times) > 0
    assert report.summary["aligned"] is True
    figures = ("small", "large", "of_raw", "small_tls", "large_tls", "kernel", "kernel_tcp")
    assert min(report.summary[figure] for figure in figures) > 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_measures_all_operations_for_both_kinds_of_data(ranks):
    report = _run(collectives, f"--ranks={ranks}", "--sizes=8,1KiB", "--seconds=0.01")

    operations = ["latency", "bandwidth", "Bcast", "Allreduce", "Allgather", "Alltoall"]
    assert [(row["operation"], row["nbytes"]) for row in report.rows] == [
        (operation, nbytes) for operation in operations for nbytes in (8, 1024)
    ]
    assert min(row[column] for row in report.rows for column in ("numpy_us", "pickle_us", "numpy_gb_s")) > 0


def test_collectives_of_one_rank_are_refused():
    with pytest.raises(InvalidRequest, match="--ranks 1: messages need two ranks at least"):
        _run(collectives, "--ranks=1")


def test_the_command_prints_json_and_draws(capsys, tmp_path):
    picture = tmp_path / "bench.png"
    words = ["collectives", "--ranks=2", "--sizes=8,64", "--seconds=0.01", "--json", f"--plot={picture}"]

    assert bench.main(words) == 0
    assert json.loads(capsys.readouterr().out)["bench"] == "collectives"
    assert picture.read_bytes().startswith(b"\x89PNG")
