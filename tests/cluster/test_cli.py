"""The command ``workbench`` as a user runs it, each subcommand in a separate process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from support.patience import DEADLINE

from workbench.deploy import registry

pytestmark = pytest.mark.in_order

USE = """
import sys
from distributed import Client
from workbench import MPICluster
with MPICluster.attach(sys.argv[1]) as cluster, Client(cluster) as client:
    print(len(cluster.ranks), client.submit(abs, -5).result())
"""


def run(*words, code=0, **variables):
    """Run the command to its end; return what it printed and what it complained of."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *words],
        capture_output=True, text=True, timeout=2 * DEADLINE, check=False, env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module", autouse=True)
def _own_registry(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        yield
        run("stop", "--all")


@pytest.fixture(scope="module")
def started():
    """The output of `start` of a cluster that keeps running."""
    return run("start", "2", "--name", "cli")


def test_start_prints_the_name_and_how_to_attach_and_a_line_for_each_state_that_is_seen(started):
    out, err = started

    assert out.startswith("cluster 'cli' is ready: 2 of 2 ranks; it continues without this terminal.\n")
    assert "%mpicluster attach cli" in out
    # A state that is shorter than the interval between two polls is not seen; a test of Ctrl-C has a long one.
    first, *between, last = [re.match(r"[a-z ]+", line)[0].rstrip() for line in err.splitlines()]
    assert (first, last) == ("submitted", "ready")
    assert between in ([], ["world starting"])


@pytest.mark.usefixtures("started")
def test_another_process_attaches_and_leaves_the_cluster_running():
    done = subprocess.run(
        [sys.executable, "-c", USE, "cli"], capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    assert done.stdout == "2 5\n"


@pytest.mark.usefixtures("started")
def test_status_and_list_tell_of_it_in_json():
    status = json.loads(run("status", "--json")[0])
    listing = json.loads(run("list", "--json")[0])

    assert (status["name"], status["state"], status["up"], status["ranks"]) == ("cli", "ready", 2, 2)
    assert [cluster["address"] for cluster in listing["clusters"]] == [status["address"]]


@pytest.mark.usefixtures("started")
def test_logs_of_a_rank_and_the_script_are_printed():
    assert run("logs", "--rank", "1")[0].startswith("rank 1 of 2")
    assert run("script", "cli")[0].startswith("#!/bin/sh\n# Cluster cli: 2 ranks")


@pytest.mark.usefixtures("started")
def test_a_second_cluster_of_the_name_is_refused():
    assert run("start", "2", "--name", "cli", code=2)[1].startswith("a cluster named 'cli' already exists.")


@pytest.mark.usefixtures("started")
def test_restart_tells_when_the_ranks_are_there_again():
    assert run("restart")[0] == "cluster 'cli' is ready: 2 of 2 ranks\n"


def test_a_verbose_start_logs_processes_and_changes_here_and_in_the_head():
    err = run("start", "1", "--name", "verbose", "--verbose")[1]
    head = registry.read("verbose").process.pid
    run("scale", "2", "verbose")
    run("stop", "verbose")

    assert re.search(rf" \d+ workbench\.process DEBUG started: the job of cluster 'verbose', process {head}\n", err)
    assert err.splitlines()[-1].startswith("ready · 1 of 1 ranks")
    log = run("logs", "verbose")[0]
    for line in (
        f"workbench.process DEBUG started: the head, process {head}",
        r"workbench.process DEBUG started: mpiexec of world 0, process \d+",
        r"workbench.process DEBUG started: the template of this node, process \d+",
        r"workbench.process DEBUG started: a rank, process \d+",
        r"workbench.process DEBUG registered: rank 0 of world 0, process \d+ on \S+",
        r"workbench.request DEBUG workbench_scale: from tls://\S+: n=2",
        r"workbench.request DEBUG workbench_scale: done for tls://\S+ after \S+ s",
        r"workbench.request DEBUG workbench_close: from tls://\S+: reason='the user has stopped it'",
        r"workbench.process DEBUG gone: rank 0 of world 0, process \d+ on \S+",
        r"workbench.process DEBUG ended: a rank, process \d+, exit code 0",
        r"workbench.process DEBUG ended: mpiexec of world 0, process \d+, exit code 0",
        r"workbench.process DEBUG ended: mpiexec of world 1, process \d+, exit code 0",
        f"workbench.process DEBUG ended: the head, process {head}, exit code 0",
    ):
        assert re.search(rf"^[-0-9]+ [:,0-9]+ \d+ {line}$", log, re.MULTILINE), line


@pytest.mark.usefixtures("started")
def test_without_being_asked_for_there_is_no_log():
    assert "DEBUG" not in run("logs", "cli")[0]


def test_a_start_that_fails_shows_the_end_of_the_log_and_leaves_nothing():
    variables = {"DASK_WORKBENCH__MPI__EXTRA_ARGS": "['--no-such-option']"}

    out, err = run("start", "1", "--name", "broken", "--json", code=1, **variables)

    error = json.loads(out)["error"]
    assert (error["kind"], error["option"]) == ("StartError", "")
    assert "no-such-option" in error["log"]
    assert err.startswith("cluster 'broken' did not start: the world ended while starting (mpiexec ended with exit")
    assert "no-such-option" in err
    assert "Traceback" not in err
    assert "broken" not in registry.names()


def test_ctrl_c_removes_what_was_started(tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text("import time\n\ndef dask_setup(worker):\n    time.sleep(600)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "workbench", "start", "2", "--name", "doomed"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "DASK_DISTRIBUTED__WORKER__PRELOAD": f"['{slow}']"},
    ) as process:  # fmt: skip
        assert any(line.startswith("world starting") for line in process.stderr)
        head = registry.read("doomed").process

        process.send_signal(signal.SIGINT)

        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert out == ""
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err
    assert head.alive() is False
    assert "doomed" not in registry.names()


@pytest.mark.usefixtures("started")
def test_stop_ends_it_and_its_logs_stay():
    assert json.loads(run("stop", "cli", "--json")[0]) == {"stopped": ["cli"], "failed": []}

    assert "cluster 'cli' has ended (the user has stopped it). Its logs are in " in run("status", "cli", code=1)[1]
    assert run("logs", "cli", "--rank", "0")[0].startswith("rank 0 of 2")
