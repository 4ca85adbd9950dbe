"""What the doctor says of a live Slurm, outside and inside of a job."""

from __future__ import annotations

import json
import shlex
import sys

import dask
import pytest
from support.processes import until

from workbench.commands import doctor_schedulers
from workbench.launch import mpi_library


def _by_check(findings):
    return {finding.check: finding for finding in findings}


def test_on_a_login_node_the_doctor_tells_the_scheduler_its_settings_and_what_starts_ranks(slurm):
    bigmem = {"queue": "small", "walltime": "01:00:00"}
    with dask.config.set({"workbench.scheduler": "auto", "jobqueue.bigmem": bigmem}):
        findings = _by_check(doctor_schedulers.examine(mpi_library.find()))

    assert "failed" not in {finding.verdict for finding in findings.values()}
    assert "Slurm answers" in findings["schedulers"].detail
    assert findings["schedulers"].detail.endswith("uses slurm")
    assert findings["allocation"].detail == "this process is not inside a job"
    assert "is started by" in findings["ranks of a job"].detail
    assert "bigmem: queue small, walltime 01:00:00" in findings["jobqueue.yaml"].detail
    # The records of tests are in a temporary folder.
    assert "JUPYTER_DATA_DIR" in findings["records on nodes"].remedy


def test_inside_of_a_job_the_doctor_tells_its_nodes_and_what_starts_ranks_on_them(slurm, tmp_path):
    out, done = tmp_path / "out", tmp_path / "done"
    doctor = shlex.join([sys.executable, "-m", "workbench", "doctor", "--json"])
    slurm.submit(f"{doctor} > {out} 2>&1; echo $? > {done}.part; mv {done}.part {done}", "--nodes=2", "--ntasks=2")
    until("the doctor to be done", done.exists, 60)

    assert done.read_text(encoding="ascii").strip() == "0", out.read_text(encoding="utf-8")
    findings = {finding["check"]: finding for finding in json.loads(out.read_text(encoding="utf-8"))["findings"]}
    assert "(2 nodes: n1, n2)" in findings["allocation"]["detail"]
    assert "is started by" in findings["ranks of a job"]["detail"]


def test_a_scheduler_that_no_start_takes_by_itself_is_checked_all_the_same(slurm):
    with dask.config.set({"workbench.scheduler": "local"}):
        findings = _by_check(doctor_schedulers.examine(mpi_library.find()))

    assert findings["schedulers"].detail.endswith("uses local")
    assert "ranks of a job" in findings


@pytest.mark.parametrize(
    ("section", "words"),
    [({"walltime": "soon"}, "soon"), ({"queue": ["a", "b"]}, "jobqueue.bigmem.queue")],
    ids=["walltime", "queue"],
)
def test_a_preset_that_no_start_could_use_fails(slurm, section, words):
    with dask.config.set({"jobqueue.bigmem": section}):
        finding = _by_check(doctor_schedulers.examine(mpi_library.find()))["jobqueue.yaml"]

    assert finding.verdict == "failed"
    assert words in finding.detail
