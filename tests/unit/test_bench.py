from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench import bench
from workbench.bench import startup
from workbench.bench.report import Report, alternate, machine, positive
from workbench.launch.mpi import MPI

FOUND = MPI("openmpi", (5, 0, 11), "/lib/libmpi.so", "/opt/bin/mpiexec")


def test_the_arms_swap_their_order_from_pair_to_pair_after_one_that_warms_up():
    order = alternate(["ours", "theirs"], 3)

    assert [pair for pair, _ in order] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [arm for _, arm in order] == ["ours", "theirs", "theirs", "ours"] * 2


def test_the_summary_is_the_ratio_of_medians():
    rows = [{"arm": "workbench", "seconds": s} for s in (1.0, 9.0, 2.0)]
    rows += [{"arm": "dask-mpi", "seconds": s} for s in (4.0, 1.0, 5.0)]

    summary = startup.summarise(rows)

    assert (summary["ratio"], summary["workbench"], summary["dask-mpi"]) == (0.5, 2.0, 4.0)
    assert (summary["target"], summary["aim"]) == (1.2, 0.8)


def test_a_report_is_one_json_object_with_all_rows_and_the_summary():
    report = Report("startup", machine(FOUND), [{"pair": 1, "arm": "a", "seconds": 1.5}], {"ratio": 0.75})

    told = json.loads(report.json())

    assert told["rows"] == report.rows
    assert told["summary"] == {"ratio": 0.75}
    assert {"cores", "mpi", "python", "mpi4py", "dask", "distributed"} <= set(told["machine"])


def test_a_report_for_people_has_a_line_for_each_row_and_figure():
    rows = [{"pair": 1, "arm": "a", "seconds": 1.5}, {"pair": 1, "arm": "longer", "seconds": 12.25}]

    lines = Report("startup", {"cores": 2}, rows, {"ratio": 0.75}).table().splitlines()

    assert lines[0] == "startup on cores 2"
    assert [line.split() for line in lines[2:5]] == [
        ["pair", "arm", "seconds"],
        ["1", "a", "1.500"],
        ["1", "longer", "12.250"],
    ]
    assert lines[-1] == "ratio: 0.750"


def test_the_reference_is_the_bare_line_with_a_rank_for_its_scheduler():
    command = startup.reference_command(FOUND, 8, Path("/folder/F"))

    assert command[:3] == ["/opt/bin/mpiexec", "-n", "9"]
    assert command[3].endswith("/dask-mpi")
    assert command[4:] == ["--scheduler-file", "/folder/F", "--worker-class", "distributed.Worker", "--no-dashboard"]


def test_the_reference_may_share_cores_as_our_own_ranks_may(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")

    environment = startup.reference_environment(FOUND, 10_000)

    assert environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert environment["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "OMPI_COMM_WORLD_RANK" not in environment


def test_a_bench_that_does_not_exist_is_refused_with_the_closest_one(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["statup"])

    assert ended.value.code == 2
    assert "did you mean 'startup'?" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5"])
def test_counts_that_are_not_above_zero_are_refused(given, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["startup", f"--pairs={given}"])

    assert ended.value.code == 2
    assert "allowed is a whole number above zero" in capsys.readouterr().err


def test_a_count_is_taken_as_it_is():
    assert positive("12") == 12


def test_without_the_reference_the_error_tells_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(startup, "find_spec", {}.get)

    assert bench.main(["startup", "--json"]) == 1
    assert "pip install 'mpi-workbench[bench]'" in capsys.readouterr().err


def test_every_bench_has_a_module_that_fits():
    from importlib import import_module

    for name in bench.BENCHES:
        module = import_module(f"workbench.bench.{name}")
        assert callable(module.run)
        assert callable(module.add_options)
