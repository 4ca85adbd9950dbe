"""`%mpicluster` in the kernel of a notebook, from the first start to the last stop."""

from __future__ import annotations

import os
import re
import signal

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from support.patience import DEADLINE

from workbench.commands import actions
from workbench.deploy import registry
from workbench.deploy.stop import stop

# The sixth line of the cell raises on one rank.
FAILS = """\
from workbench import run_on_ranks

def scale(comm):
    factor = comm.allreduce(1)
    if comm.rank == 1:
        raise KeyError(factor)
    return factor

run_on_ranks(scale)
"""
ELSEWHERE = """\
import subprocess, sys, time
from workbench.errors import RankLost

for ranks in ("4", "3"):
    subprocess.run([sys.executable, "-m", "workbench", "scale", ranks, "first"], check=True, capture_output=True)
    end = time.monotonic() + 60
    while True:  # the notice of the head takes a moment
        try:
            print(workbench.run_on_ranks(lambda comm, X: (comm.size, len(X)), X))
            break
        except RankLost:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
"""
CELLS = {
    "load": "%load_ext workbench\nranks = 2",
    "start": "%mpicluster start {ranks} --name first",
    "use": "import asyncio\nprint(bool(asyncio.get_running_loop()), client.submit(abs, -7).result(), cluster.name)",
    "fail": FAILS,
    "start another": "%mpicluster start 1",
    "use another": "print(client.cluster is cluster, client.submit(abs, -8).result(), cluster.name)",
    "list": "%mpicluster list",
    "attach": "%mpicluster attach first",
    "scale": "import numpy as np\nimport workbench\nX = workbench.place(np.ones(6))\n%mpicluster scale 3",
    "scale elsewhere": ELSEWHERE,
    "restart": "%mpicluster restart",
    "status": "%mpicluster status",
    "logs": "%mpicluster logs --rank 2",
    "script": "%mpicluster script",
    "bad scale": "%mpicluster scale 0",
    "taken": "%mpicluster start 2 --name first",
    "broken": "import dask\nwith dask.config.set({'workbench.mpi.extra-args': ['--no-such-option']}):\n"
    "    get_ipython().run_line_magic('mpicluster', 'start 1 --name broken')",
    "stop": "%mpicluster stop",
    "names": "print({'cluster', 'client'} & set(globals()))",
    "stop all": "%mpicluster stop --all",
    "end": "%mpicluster list",
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The outputs of each cell, by its name, in a separate registry."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()])
    kernel = NotebookClient(
        notebook, timeout=round(2 * DEADLINE), startup_timeout=round(DEADLINE), kernel_name="python3", allow_errors=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        try:
            kernel.execute(env=dict(os.environ))
            yield dict(zip(CELLS, [cell.outputs for cell in notebook.cells], strict=True))
        finally:
            actions.stop(actions.targets(None, everything=True))


def text(outputs, kind=None):
    """Return what was shown, as text; of streams only those of a kind."""
    # A kernel cuts a stream into outputs wherever its timer falls, in the middle of a line as well.
    stream = "".join(
        output.text for output in outputs if output.output_type == "stream" and kind in (None, output.name)
    )
    shown = [output.data["text/plain"] for output in outputs if "data" in output and kind is None]
    return "\n".join([*([stream] if stream else []), *shown])


def test_a_start_ends_in_one_line_of_progress_and_the_live_cluster(cells):
    progress, cluster = cells["start"]

    assert progress.data["text/plain"].startswith("ready · 2 of 2 ranks |")
    assert "\n" not in progress.data["text/plain"]
    assert cluster.data["text/plain"].startswith("MPICluster('first', 2 of 2 ranks, ready, tls://")
    assert "MPI cluster first" in cluster.data["text/html"]


def test_the_traceback_of_a_rank_points_to_the_line_of_the_cell_that_failed(cells):
    [error] = [output for output in cells["fail"] if output.output_type == "error"]
    pointed = [
        line
        for line in re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback)).splitlines()
        if re.match(r"-+> \d+ ", line)
    ]

    assert error.ename == "KeyError"
    # IPython 8 shows the lines of a frame without their common indent.
    assert [line.split()[1:3] for line in pointed if "(scale)" in line or "(factor)" in line] == [
        ["9", "run_on_ranks(scale)"],
        ["6", "raise"],
    ]


def test_a_start_is_synchronous_though_the_kernel_runs_a_loop_and_binds_cluster_and_client(cells):
    assert text(cells["use"]) == "True 7 first\n"


def test_a_second_start_leaves_the_first_cluster_running_and_says_so(cells):
    assert text(cells["start another"], "stdout") == (
        "cluster 'first' is still running; %mpicluster attach first connects again\n"
    )
    assert text(cells["use another"]) == "True 8 mpi\n"
    rows = [line.split()[:5] for line in text(cells["list"]).splitlines()[1:]]
    assert [row[0] for row in rows] == ["first", "mpi"]
    assert rows[0][1:] == ["ready", "2", "of", "2"]


def test_attach_binds_the_other_cluster_again(cells):
    assert "MPICluster('first', 2 of 2 ranks, ready, tls://" in text(cells["attach"])
    assert "cluster 'mpi' is still running" in text(cells["attach"])


def test_scale_and_restart_tell_the_size_and_status_tells_all(cells):
    assert "placed again on 3 ranks: X\n" in text(cells["scale"])
    assert "cluster 'first' is ready: 3 of 3 ranks\n" in text(cells["scale"])
    assert text(cells["restart"]) == "cluster 'first' is ready: 3 of 3 ranks\n"
    assert "ranks       3 of 3, 1 thread each" in text(cells["status"]).splitlines()


def test_blocks_are_found_where_the_scale_of_another_process_has_moved_them(cells):
    assert text(cells["scale elsewhere"], "stdout").count("[(3, 2), (3, 2), (3, 2)]\n") == 2


def test_logs_and_script_are_those_of_the_cluster_in_use(cells):
    assert text(cells["logs"]).startswith("rank 2 of 3")
    assert text(cells["script"]).startswith("#!/bin/sh\n# Cluster first: 2 ranks")


def test_what_the_head_refuses_is_a_usage_error(cells):
    assert text(cells["bad scale"], "stderr").startswith("UsageError: ")
    assert text(cells["taken"], "stderr").startswith("UsageError: a cluster named 'first' already exists.")


def test_a_start_that_fails_shows_the_end_of_the_log_and_no_traceback(cells):
    failure = text(cells["broken"], "stderr")

    why = "the world ended while starting (mpiexec ended with exit code"
    assert failure.startswith(f"UsageError: cluster 'broken' did not start: {why}")
    assert "world-0.log" in failure
    assert "no-such-option" in failure
    assert all(output.output_type != "error" for output in cells["broken"])


def test_stop_ends_the_cluster_in_use_and_takes_its_names_away(cells):
    assert text(cells["stop"]) == "cluster 'first' has ended\n"
    assert text(cells["names"]) == "set()\n"
    assert text(cells["stop all"]) == "cluster 'mpi' has ended\n"
    assert text(cells["end"]) == "no cluster runs"


class Kernel:
    """A kernel that shows what it prints whether or not a cell runs."""

    def __init__(self, client):
        self.client = client

    def run(self, source):
        """Return what is printed until a cell has run, by whomever."""
        cell = self.client.execute(source)
        return self._printed(
            lambda message, _: (
                message["parent_header"]["msg_id"] == cell and message["content"].get("execution_state") == "idle"
            )
        )

    def line(self):
        """Return what is printed until a line is complete."""
        return self._printed(lambda _, printed: printed.endswith("\n"))

    def _printed(self, complete):
        printed = ""
        while True:
            message = self.client.get_iopub_msg(timeout=DEADLINE)
            assert message["msg_type"] != "error", message["content"]["evalue"]
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
            if complete(message, printed):
                return printed


@pytest.fixture(scope="module")
def bare_kernel(tmp_path_factory):
    """A kernel in which no cluster runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        manager, client = start_new_kernel(kernel_name="python3", startup_timeout=DEADLINE)
        try:
            kernel = Kernel(client)
            assert kernel.run("%load_ext workbench") == ""
            yield kernel
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            actions.stop(actions.targets(None, everything=True))


@pytest.fixture
def kernel(bare_kernel, monkeypatch, request):
    """A kernel whose `cluster` has two ranks, and is kept with its `client` by another name as well."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", bare_kernel.run("import os; print(os.environ['JUPYTER_DATA_DIR'])").strip())
    # A task follows the subscription to events on the same connection: with its result the head has both.
    started = (
        "%mpicluster start 2 --name mine\nkept = cluster, client\ndone = client.submit(int)\nassert done.result() == 0"
    )
    try:
        assert bare_kernel.run(started) == ""
        yield bare_kernel
    finally:
        bare_kernel.run("%mpicluster stop --all")


def _kill_the_head(record):
    os.kill(record.process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "told", "reason"),
    [
        (
            stop,
            r"cluster 'mine': the cluster ends: the user has stopped it\n",
            r"cluster 'mine' has ended \(the user has stopped it\)\. Its logs are in ",
        ),
        (
            _kill_the_head,
            r"cluster 'mine': the cluster has ended: its head was killed or crashed\. Its logs are in \S+/mine-\w+\n",
            r"(?s).* cancelled for reason: scheduler-connection-lost\.",
        ),
    ],
    ids=["stopped", "killed"],
)
def test_a_cluster_that_is_ended_elsewhere_says_so_in_one_line_and_takes_its_names_away(kernel, end, told, reason):
    end(registry.running("mine"))

    assert re.fullmatch(told, kernel.line())
    taken = "import time\nwhile {'cluster', 'client'} & set(globals()):\n    time.sleep(0.01)"
    assert kernel.run(taken) == ""
    # So that Dask does not try further to reach the head.
    assert kernel.run("print(kept[0].status.name, kept[1].status)") == "closed closed\n"
    lost = "try:\n    done.result()\nexcept BaseException as error:\n    print(error)"
    assert re.match(reason, kernel.run(lost))


def test_a_notebook_that_has_missed_the_event_reports_the_reason_of_the_end_all_the_same(kernel):
    # To unsubscribe would take a while, in which the event may come.
    assert kernel.run("client.subscribe_topic('workbench', lambda event: None)") == ""

    stop(registry.running("mine"))

    assert re.fullmatch(
        r"cluster 'mine': the cluster has ended: the user has stopped it\. Its logs are in \S+/mine-\w+\n",
        kernel.line(),
    )


def test_a_cluster_that_is_closed_in_the_notebook_does_not_tell_of_its_end(kernel):
    assert kernel.run("cluster.close()") == ""
    assert kernel.run("print(kept[0].status.name)") == "closed\n"


def test_a_rank_that_is_lost_is_told_though_no_cell_runs(kernel):
    os.kill(int(kernel.run("print(cluster.ranks[1]['pid'])")), signal.SIGKILL)

    assert re.fullmatch(r"cluster 'mine': rank 1 .*\n", kernel.line())
