from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import apps, idle
from workbench import bench
from workbench.bench import broadcast, collectives, measuring, plotting, spmd, startup, transport
from workbench.bench.report import Report, above_zero, alternate, machine, order, positive
from workbench.bench.sizes import sizes, words
from workbench.errors import LaunchError
from workbench.launch.mpi_library import MPI

FOUND = MPI("openmpi", (5, 0, 11), "/lib/libmpi.so", "/opt/bin/mpiexec")


def test_the_arms_take_turns_after_a_round_that_warms_up():
    turns = alternate(["ours", "theirs"], 3)

    assert [number for number, _ in turns] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [arm for _, arm in turns] == ["ours", "theirs", "theirs", "ours", "theirs", "ours", "ours", "theirs"]


def test_the_summary_is_the_ratio_of_medians():
    rows = [{"arm": "workbench", "seconds": s, "mb_per_rank": 10 * s} for s in (1.0, 9.0, 2.0)]
    rows += [{"arm": "dask-mpi", "seconds": s, "mb_per_rank": 20 * s} for s in (4.0, 1.0, 5.0)]

    summary = startup.summarize(rows)

    assert (summary["ratio"], summary["workbench, seconds"], summary["dask-mpi, seconds"]) == (0.5, 2.0, 4.0)
    assert (summary["workbench, MB per rank"], summary["dask-mpi, MB per rank"]) == (20.0, 80.0)
    assert (summary["target"], summary["aim"]) == (0.75, 0.6)


def test_a_report_is_one_json_object_with_all_rows_and_the_summary():
    report = Report("startup", machine(FOUND), [{"pair": 1, "arm": "a", "seconds": 1.5}], {"ratio": 0.75})

    told = json.loads(report.json())

    assert told["rows"] == report.rows
    assert told["summary"] == {"ratio": 0.75}
    assert {"cores", "mpi", "python", "mpi4py", "dask", "distributed"} <= set(told["machine"])


def test_a_report_for_people_has_a_line_for_each_row_and_figure():
    rows = [{"pair": 1, "arm": "a", "seconds": 1.5}, {"pair": 1, "arm": "longer", "seconds": 12.25}]

    lines = Report("startup", {"cores": 2}, rows, {"ratio": 0.75}).table().splitlines()

    assert lines[0] == "startup on 2 cores"
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


def test_a_start_is_not_measured_without_its_reference(monkeypatch):
    monkeypatch.setattr(startup, "find_spec", lambda _: None)
    with pytest.raises(LaunchError):
        startup.run(argparse.Namespace(pairs=1, ranks=1))


def test_a_reference_that_ends_before_it_is_up_is_reported_with_its_last_words(tmp_path):
    log = tmp_path / "log"
    log.write_text("no such option: --scheduler-file")
    with (
        subprocess.Popen([sys.executable, "-c", ""]) as ended,
        pytest.raises(LaunchError, match=r"dask-mpi did not start(.|\n)*no such option: --scheduler-file"),
    ):
        startup.await_file(tmp_path / "scheduler.json", ended, log)


def test_the_memory_of_a_process_is_counted_with_that_of_its_children():
    waits = "import sys; taken = b'x' * 32_000_000; print(flush=True); sys.stdin.read()"
    alone = startup.memory_mib(os.getpid())
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert startup.memory_mib(child.pid) > 32
        assert startup.memory_mib(os.getpid()) > alone + 16  # this process shares some of its memory with the child
        child.stdin.close()


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
    assert "Choose a whole number above zero" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["0", "-1.5", "many", "nan", "inf"])
def test_numbers_that_are_not_above_zero_are_refused(given, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["spmd", f"--seconds={given}"])

    assert ended.value.code == 2
    assert "Choose a number above zero" in capsys.readouterr().err


def test_counts_and_numbers_are_taken_as_they_are():
    assert positive("12") == 12
    assert above_zero("0.5") == 0.5


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


def transport_row(nbytes, tcp, mpi, *, raw=1.0, tls=8.0, mpi_tls=2.0, aligned=True):
    times = {"tcp_us": tcp, "mpi_us": mpi, "raw_us": raw, "tls_us": tls, "mpi_tls_us": mpi_tls}
    return {"nbytes": nbytes, **times, "aligned": aligned}


def strips_rows(*arms, **also):
    return [{**also, "pair": 1, "arm": arm, "seconds": seconds} for arm in arms for seconds in (1.0, 2.0, 4.0)]


def test_transport_sums_up_small_and_large_sizes_by_geometric_means():
    rows = [
        transport_row(1, 10.0, 20.0),
        transport_row(65_536, 40.0, 20.0, mpi_tls=32.0),
        transport_row(262_144, 1.0, 100.0),
        transport_row(2_097_152, 20.0, 10.0, raw=5.0),
        transport_row(268_435_456, 80.0, 10.0, raw=1.25),
    ]

    summary = transport.summarize(rows)

    assert summary["small"] == pytest.approx(1)
    assert summary["large"] == pytest.approx(4)
    assert summary["of_raw"] == pytest.approx(0.25)
    assert summary["small_tls"] == pytest.approx(1)
    assert summary["large_tls"] == pytest.approx(4)
    assert summary["aligned"] is True
    assert (summary["small_target"], summary["large_target"], summary["large_aim"]) == (1.05, 2.0, 4.0)


def test_transport_says_nothing_of_sizes_that_were_not_measured():
    summary = transport.summarize([transport_row(1, 1.0, 1.0, aligned=False)])

    assert summary["large"] is summary["of_raw"] is summary["large_tls"] is None
    assert summary["aligned"] is False


@pytest.mark.parametrize("arms", ["abcde", "abcd", "ab"])
def test_every_arm_comes_after_each_other_one_equally_often(arms):
    rounds = [order(arms, number) for number in range(2 * len(arms))]

    assert all(sorted(round_) == list(arms) for round_ in rounds)
    after = Counter(step for round_ in rounds for step in pairwise(round_))
    assert after == {(a, b): 2 for a in arms for b in arms if a != b}


def test_apps_sums_up_the_ratio_of_medians_of_each_program_plain_and_under_tls():
    rows = strips_rows(*apps.PLAIN, app="svd") + [
        {"app": "merge", "arm": arm, "seconds": seconds}
        for arm, seconds in (("mpi", 1.0), ("tcp", 4.0), ("mpi_tls", 3.0), ("tls", 6.0))
    ]

    summary = apps.summarize(rows)

    assert (summary["svd"], summary["merge"], summary["target"]) == (1.0, 0.25, 1.05)
    assert (summary["svd_tls"], summary["merge_tls"]) == (None, 0.5)
    assert (summary["merge_mpi_seconds"], summary["merge_tls_seconds"]) == (1.0, 6.0)


def test_broadcast_sums_up_how_many_times_faster_it_is():
    rows = strips_rows("broadcast") + [{"arm": "scatter", "seconds": seconds} for seconds in (1.0, 6.0, 7.0)]

    assert broadcast.summarize(rows) == {"speedup": 3.0, "target": 2.0, "broadcast": 2.0, "scatter": 6.0}


def spmd_rows():
    for what, arm, ranks, times in (
        ("empty call", "spmd", 2, (4.0, 5.0, 60.0)),
        ("kernel", "spmd", 2, (2.0, 3.0, 1.0)),
        ("kernel", "bare", 2, (4.0, 3.0, 5.0)),
        ("empty call", "spmd", 8, (30.0, 20.0, 10.0)),
    ):
        for number, ms in enumerate(times, 1):
            yield {"what": what, "arm": arm, "ranks": ranks, "round": number, "ms": ms, "cpu_ms": 2 * ms}


def test_spmd_sums_up_medians_of_the_empty_call_and_the_ratio_of_those_of_the_kernel():
    summary = spmd.summarize(list(spmd_rows()))

    assert (summary["empty_call_ms"], summary["empty_call_8_ms"], summary["kernel_ratio"]) == (5.0, 20.0, 0.5)
    assert (summary["empty_call_cpu_ms"], summary["empty_call_8_cpu_ms"], summary["kernel_cpu_ratio"]) == (10, 40, 0.5)
    targets = ("empty_call_target_ms", "empty_call_8_target_ms", "kernel_target")
    assert [summary[name] for name in targets] == [10.0, 25.0, 1.02]


def collectives_row(operation, nbytes, numpy, ours):
    times = {"numpy_us": numpy, "ours_us": ours, "pickle_us": 9.0}
    return {"operation": operation, "nbytes": nbytes, **times, "numpy_gb_s": 1.0, "ours_gb_s": 1.0, "pickle_gb_s": 0.5}


def test_collectives_sums_up_what_our_communicator_takes_beyond_plain_mpi():
    rows = [
        collectives_row("Bcast", 8, 1.0, 9.0),
        collectives_row("Allreduce", 8, 3.0, 5.0),
        collectives_row("Allreduce", 2**24, 4000.0, 5000.0),
    ]

    summary = collectives.summarize(rows)

    assert (summary["allreduce_small_extra_us"], summary["allreduce_16mb_ratio"]) == (2.0, 1.25)
    assert (summary["allreduce_small_extra_target_us"], summary["allreduce_16mb_target"]) == (3.0, 1.03)


def torch_row(operation, nbytes, mpi, torch):
    return {"operation": operation, "nbytes": nbytes, "mpi_us": mpi, "torch_us": torch}


TORCH = [
    torch_row("all_reduce", 1024, 5.0, 25.0),
    torch_row("all_reduce", 2**20, 100.0, 200.0),
    torch_row("all_reduce", 2**22, 400.0, 200.0),
    torch_row("broadcast", 1024, 5.0, 35.0),
    torch_row("broadcast", 2**20, 100.0, 800.0),
]


def test_collectives_of_torch_sums_up_what_is_added_below_a_mebibyte_and_the_ratio_above():
    assert collectives.summarize_torch(TORCH) == {
        "torch_small_extra_us": 30.0,
        "torch_large_ratio": pytest.approx(2.0),
        "all_reduce_small_extra_us": 20.0,
        "all_reduce_large_ratio": pytest.approx(1.0),
        "small_extra_target_us": 40.0,
        "large_target": 1.1,
    }
    assert collectives.summarize_torch(TORCH[1:2])["torch_small_extra_us"] is None


def test_collectives_of_torch_are_drawn_with_a_panel_for_each_operation():
    assert len(collectives.plot(Report("collectives", {"ranks": 2, "torch": "2.13"}, TORCH, {})).axes) == 2


def test_collectives_says_nothing_of_an_allreduce_that_was_not_measured():
    summary = collectives.summarize([collectives_row("Allreduce", 64, 1.0, 1.0)])

    assert summary["allreduce_small_extra_us"] is summary["allreduce_16mb_ratio"] is None


def test_idle_sums_up_the_median_of_the_ratios_of_each_window():
    rows = [{"mpi_percent": ours, "tcp_percent": theirs} for ours, theirs in ((2.0, 1.0), (3.0, 3.0), (40.0, 50.0))]

    assert idle.summarize(rows) == {"ratio": 1.0, "target": 1.1, "mpi_percent": 3.0, "tcp_percent": 3.0}


def test_idle_counts_processes_that_came_within_the_window_and_none_that_went():
    assert measuring.used({1: 5.0, 2: 7.0}, {1: 6.0, 3: 0.5}) == 1.5


def test_idle_looks_at_a_process_and_all_that_it_has_started():

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= set(measuring.cpu_seconds(os.getpid()))
        child.communicate(b"\n")


def test_sizes_are_taken_in_any_order_and_given_in_words():
    assert sizes("2MiB,1,64KiB,1") == [1, 65_536, 2_097_152]
    assert [words(size) for size in (1, 65_536, 1.5 * 2**20, 2**30)] == ["1 B", "64 KiB", "1.5 MiB", "1 GiB"]


@pytest.mark.parametrize("given", ["", "KiB", "0", "-1", "1,,2", "1 horse"])
def test_what_is_no_size_is_refused(given):
    with pytest.raises(argparse.ArgumentTypeError):
        sizes(given)


@pytest.mark.parametrize("given", ["bench.gif", "bench", "/no/such/folder/bench.png"])
def test_what_cannot_be_drawn_to_is_refused_before_anything_is_measured(given, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["transport", f"--plot={given}"])

    assert ended.value.code == 2
    assert given in capsys.readouterr().err


def test_without_matplotlib_the_error_tells_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(plotting, "find_spec", {}.get)

    assert bench.main(["transport", "--plot=bench.png"]) == 1
    assert "pip install 'mpi-workbench[bench]'" in capsys.readouterr().err


PLOTS = {
    transport: [transport_row(nbytes, 3.0, 2.0) for nbytes in (1, 2**20, 2**21)],
    collectives: [
        collectives_row(name, nbytes, 1.0, 1.5)
        for name in ("latency", "bandwidth", "Bcast", "Allreduce", "Allgather", "Alltoall")
        for nbytes in (8, 64)
    ],
    broadcast: strips_rows("broadcast", "scatter", nbytes=2**28),
    spmd: list(spmd_rows()),
}


@pytest.mark.parametrize("module", PLOTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_report_is_drawn_with_a_name_and_a_unit_on_every_axis(module, tmp_path):
    rows = PLOTS[module]
    summary = module.summarize(rows) if hasattr(module, "summarize") else {}

    drawn = module.plot(Report("a bench", {"cores": 2, "ranks": 4}, rows, summary))

    drawn.savefig(tmp_path / "bench.png")
    for panel in drawn.axes:
        assert panel.get_xlabel()
        assert panel.get_ylabel()
