"""Ranks of a cluster are forked from one process of their node, and are as good as others."""

from __future__ import annotations

import logging
import operator
import os
import sys
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from distributed import Client
from support.processes import DEADLINE, GONE_WITHIN, gone, kill, line_of, processes_of, until
from support.raised import raises

from workbench import MPICluster, place, run_on_ranks
from workbench.cells import client as cells
from workbench.commands import actions
from workbench.deploy import logs
from workbench.deploy.folder import ClusterFolder
from workbench.errors import InvalidRequest, StartError

RANK, HEAD, TEMPLATE = "workbench.rank", "workbench.head", "workbench.fork"
# A module that remembers which process has imported it first.
IMPORTED = "import os\nPROCESS = os.getpid()\n"


def programs(cluster, pid):
    """Return the programs of a process and those above it, up to the head."""
    head = cluster.record.process.pid
    above = [psutil.Process(pid), *psutil.Process(pid).parents()]
    up_to_head = above[: [process.pid for process in above].index(head) + 1]
    return [next((word for word in line_of(process) if word.startswith("workbench.")), "") for process in up_to_head]


def imported():
    return sys.modules["remembers"].PROCESS, os.getpid(), os.getppid()


def own_part(told):
    """Return which part of the memory of a rank is its own; of what it shares with others, its share."""
    _, rank, _ = told
    rollup = Path(f"/proc/{rank}/smaps_rollup").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in rollup[1:]}
    return kib["Pss:"] / kib["Rss:"]


def draw():
    return np.random.random()  # noqa: NPY002  (the generator that a fork would share)


@pytest.fixture
def remembers(tmp_path, monkeypatch):
    """A module in the folder of the user, beside files that have the names of modules of libraries."""
    (tmp_path / "remembers.py").write_text(IMPORTED)
    for name in (
        "random",
        "queue",
        "statistics",
        "secrets",
        "types",
        "dask",
        "yaml",
        "mpi4py",
        "ipyparallel",
        "workbench",
    ):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('an exercise of the user')\n")
    monkeypatch.chdir(tmp_path)


def is_of_python():
    import statistics

    return statistics.mean([1, 3]) == 2


@pytest.mark.mpi_flavor
def test_ranks_are_forked_from_one_process_and_so_are_those_that_come_later(remembers):
    with MPICluster(2, preload="remembers", quiet=True) as cluster, Client(cluster) as client:
        cluster.scale(3)
        assert [programs(cluster, rank["pid"]) for rank in cluster.ranks] == [[RANK, TEMPLATE, HEAD]] * 3
        told = client.run(imported).values()
        (template,) = {process for process, _, _ in told}
        assert {above for _, _, above in told} == {template}
        assert len({rank for _, rank, _ in told}) == 3
        assert max(map(own_part, told)) < 0.8, "what was imported is in the memory of all at once"
        assert len(set(client.run(draw).values())) == 3, "the numbers of one are not the others'"
        assert client.submit(is_of_python).result(DEADLINE)
        cluster.restart()
        assert {process for process, _, _ in client.run(imported).values()} == {template}
        assert "without the template" not in cluster.logs()


def test_without_the_template_each_rank_imports_by_itself(remembers):
    with dask.config.set({"workbench.template": False}):
        cluster = actions.start(ranks=2, preload=["remembers"], quiet=True)
    with cluster, Client(cluster) as client:
        assert all(process == rank for process, rank, _ in client.run(imported).values())
        assert all(client.run(is_of_python).values())
        assert cells.evaluate("__import__('sys').path[0]", client=client) != ["", ""]
        assert (
            cells.evaluate("__import__('remembers').PROCESS == __import__('os').getpid()", client=client) == [True] * 2
        )
        assert all(programs(cluster, rank["pid"])[0] == RANK for rank in cluster.ranks)
        assert not [process for process in processes_of(cluster) if TEMPLATE in line_of(process)]


def test_the_first_call_of_a_rank_loads_no_pandas():
    with MPICluster(1, quiet=True) as cluster, Client(cluster) as client:
        assert run_on_ranks(operator.attrgetter("size"), client=client) == [1]
        (modules,) = client.run(eval, "list(__import__('sys').modules)").values()
        assert "pandas" not in modules


@pytest.mark.mpi_flavor
def test_a_template_that_is_killed_takes_no_rank_along_and_the_next_start_has_another():
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        before = client.run(os.getpid)
        template = psutil.Process(next(iter(before.values()))).parent()
        assert TEMPLATE in line_of(template)
        kill(template)
        until("the template is gone", lambda: gone(template))
        assert client.run(os.getpid) == before
        assert client.submit(sum, [1, 2]).result(DEADLINE) == 3
        cluster.restart()
        (other,) = set(client.run(os.getppid).values())
        assert TEMPLATE in line_of(psutil.Process(other))
        processes = [*processes_of(cluster), psutil.Process(other)]
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)


def test_what_dask_logs_on_a_rank_is_in_the_log_of_the_rank(client4, cluster4):
    def warn(dask_worker):
        logging.getLogger("distributed.worker").warning("rank %s warns", dask_worker.name)

    client4.run(warn)
    for rank in range(4):
        log = (ClusterFolder.of(cluster4.record).logs / f"rank-{rank}.log").read_text()
        assert f" - distributed.worker - WARNING - rank {rank} warns\n" in log


def test_a_start_leaves_a_table_of_its_times(cluster4):
    lines = (ClusterFolder.of(cluster4.record).logs / "head.log").read_text().splitlines()
    told = {step for time, _, step in (line.strip().partition(" s ") for line in lines) if time[:1].isdigit()}
    steps = {"the head begins", "mpiexec is started", "ranks begin", "ranks are forked", "ranks have initialized MPI"}
    steps |= {"the scheduler listens", "ranks have made their workers", "all ranks have registered"}
    assert steps <= {step.strip() for step in told}


def test_a_module_that_cannot_be_imported_fails_the_start_in_words():
    with pytest.raises(StartError, match=r"No module named 'no_such_module'"):
        MPICluster(1, preload=["no_such_module"], quiet=True)


def test_a_module_that_starts_threads_has_the_ranks_import_by_themselves():
    with MPICluster(2, preload=["support.starts_thread"], quiet=True) as cluster, Client(cluster) as client:
        assert all("support.starts_thread" in modules for modules in client.run(lambda: list(sys.modules)).values())
        assert all(programs(cluster, rank["pid"])[:1] == [RANK] for rank in cluster.ranks)
        assert (
            "the import of support.starts_thread starts threads"
            in logs.of_world(ClusterFolder.of(cluster.record).logs, 0).read_text()
        )


@pytest.mark.parametrize("name", ["", "a b", "os;", "1"])
def test_a_preload_that_is_no_name_of_a_module_is_refused(name):
    with raises(InvalidRequest, option="preload"):
        MPICluster(1, preload=[name], quiet=True)


def test_the_first_uses_of_preloaded_packages_import_almost_nothing_on_the_ranks():
    import torch

    from workbench.ml import KMeans, LogisticRegression
    from workbench.torch import fit, predict

    numbers = np.random.default_rng(0).normal(size=(64, 4))
    with (
        MPICluster(1, preload=["workbench.cells", "workbench.ml", "workbench.torch"], quiet=True) as cluster,
        Client(cluster) as client,
    ):
        before = set(run_on_ranks(lambda _: list(sys.modules), client=client)[0])
        cells.run("print(comm.size)", client=client)
        X, y = place(numbers, (numbers[:, 0] > 0).astype(int), client=client)
        LogisticRegression().fit(X, y).predict(X).compute()
        KMeans(2, random_state=0).fit(X)
        module = torch.nn.Linear(4, 2).double()
        fit(module, torch.nn.functional.cross_entropy, X, y, epochs=1, size=32)
        predict(module, X).compute()
        further = set(run_on_ranks(lambda _: list(sys.modules), client=client)[0]) - before
        assert programs(cluster, cluster.ranks[0]["pid"]) == [RANK, TEMPLATE, HEAD]

    assert len(further) <= 50, sorted(further)
