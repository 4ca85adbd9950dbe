from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.commands import doctor_schedulers as checks
from workbench.errors import LaunchError
from workbench.launch.allocation import Allocation
from workbench.launch.jobqueue import Site
from workbench.launch.launchers import choose
from workbench.launch.mpi_library import MPI, WorldCommand
from workbench.launch.multinode import interfaces

OPENMPI = MPI("openmpi", (5, 0, 11), "/lib/libmpi.so", "/bin/mpiexec")
MPICH = MPI("mpich", (4, 3, 2), "/lib/libmpi.so", "/bin/mpiexec")
# Of Slurm 22.05 as Debian builds it.
MPI_LIST = """MPI plugin types are...
\tcray_shasta
\tpmi2
\tpmix
\tnone
specific pmix plugin versions available: pmix_v4
"""
NAMED = interfaces(MPI_LIST)


def site(**given) -> Site:
    nothing = dict.fromkeys(("queue", "account", "walltime", "memory", "interface", "local_directory", "resource_spec"))
    lines = dict.fromkeys(("prologue", "extra", "skip"), ())
    return Site(**{"section": "slurm", "shebang": "#!/bin/sh", **nothing, **lines, **given})


def test_a_host_without_a_scheduler_is_well():
    finding = checks.schedulers({}, "local")

    assert finding.verdict == "ok"
    assert "uses local" in finding.detail


def test_grid_engine_is_not_taken_for_pbs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("qsub", "qstat", "qconf"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(0o755)
    finding = next(checks.examine(None))
    assert finding.verdict == "ok"
    assert finding.detail.startswith(f"{tmp_path}/qsub belongs to Grid Engine, which is not supported; ")
    with raises(LaunchError, option="scheduler", given="pbs"):
        choose("pbs")


def test_a_scheduler_that_does_not_answer_is_told_with_the_command_to_ask_it():
    finding = checks.schedulers({"slurm": False, "pbs": True}, "pbs")

    assert finding.verdict == "warning"
    assert finding.detail == "Slurm does not answer, PBS answers; a start without --scheduler uses pbs"
    assert "`sinfo`" in finding.remedy


def test_inside_of_a_job_its_nodes_and_the_scheduler_here_are_told():
    finding = checks.allocation(Allocation("slurm", "7", ("n1", "n2"), (2, 2)), [])

    assert finding.verdict == "ok"
    assert "Slurm job 7 (2 nodes: n1, n2)" in finding.detail
    assert "--scheduler here" in finding.detail


def test_the_identity_of_an_enclosing_step_is_harmless_and_told_in_short():
    finding = checks.allocation(None, ["PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"])

    assert finding.verdict == "ok"
    assert "PMIX_RANK, SLURM_PROCID, SLURM_STEP_ID and 1 more" in finding.detail


def test_what_starts_the_ranks_of_a_job_is_told_with_what_srun_names():
    by_srun = checks.pairing(MPICH, NAMED, ["/bin/srun", "--mpi=pmi2", "--nodes=1"])
    by_mpiexec = checks.pairing(OPENMPI, NAMED, ["/mpi/bin/mpiexec", "-n", "1"])

    assert (by_srun.verdict, by_mpiexec.verdict) == ("ok", "ok")
    assert "started by srun --mpi=pmi2; srun names" in by_srun.detail
    assert "its own mpiexec; srun names" in by_mpiexec.detail


def test_open_mpi_under_srun_is_a_warning_that_says_what_to_check():
    finding = checks.pairing(OPENMPI, NAMED, ["/bin/srun", "--mpi=pmix"])

    assert finding.verdict == "warning"
    assert "crash" in finding.detail
    assert "libpmix.so" in finding.remedy


def test_the_sections_of_jobqueue_are_told_with_what_they_set():
    read = {"slurm": site(walltime="00:30:00"), "bigmem": site(queue="big", account="physics")}

    finding = checks.sections(read, [Path("/etc/dask/jobqueue.yaml")])

    told = "/etc/dask/jobqueue.yaml; slurm: walltime 00:30:00; bigmem: queue big, account physics"
    assert (finding.verdict, finding.detail) == ("ok", told)
    assert checks.sections(read, [], ["not used: cores of jobqueue.slurm"]).verdict == "ok"
    lost = checks.sections(read, [], ["jobqueue.slurm.partition is not read"])
    assert (lost.verdict, lost.detail.rpartition("; ")[2]) == ("warning", "jobqueue.slurm.partition is not read")


def test_an_interface_of_jobs_is_well_if_none_is_named_or_it_is_here():
    assert checks.interface({"a": None, "b": None}, ["lo"], inside=True).verdict == "ok"
    assert "ib0 (b)" in checks.interface({"a": None, "b": "ib0"}, ["lo", "ib0"], inside=True).detail


@pytest.mark.parametrize(("inside", "place"), [(True, "this node"), (False, "this host")])
def test_an_interface_that_is_not_here_is_told_with_those_that_are(inside, place):
    finding = checks.interface({"a": "ib0", "b": "lo"}, ["lo", "eth0"], inside=inside)

    assert finding.verdict == "warning"
    assert f"a names ib0, which {place} does not have" in finding.detail
    assert "has eth0, lo" in finding.remedy


MOUNTS = [("/", "ext4"), ("/ram", "tmpfs"), ("/shared", "nfs4"), ("/shared", "lustre"), ("/scratch", "xfs")]


@pytest.mark.parametrize(
    ("folder", "kind", "verdict"),
    [
        ("/shared/me/data", "lustre", "ok"),
        ("/shareds/me", "ext4", "ok"),
        ("/ram/me", "tmpfs", "warning"),
        ("/node/me", "ext4", "warning"),
        ("/scratch/here/me", "xfs", "warning"),
    ],
    ids=["shared", "disk", "memory", "temporary", "own temporary"],
)
def test_a_folder_that_every_host_has_for_itself_is_a_warning(folder, kind, verdict):
    assert checks.file_system(Path(folder), MOUNTS) == kind

    finding = checks.shared_folder(Path(folder), kind, ["/node", "/scratch/here"])

    assert finding.verdict == verdict
    assert ("JUPYTER_DATA_DIR" in finding.remedy) == (verdict == "warning")


def test_a_temporary_folder_on_a_shared_file_system_is_well():
    assert checks.shared_folder(Path("/node/me"), "nfs4", ["/node"]).verdict == "ok"
    assert checks.file_system(Path("/anywhere"), []) == ""


def test_ssh_is_needed_by_nobody():
    assert checks.tunnel("/usr/bin/ssh").verdict == checks.tunnel(None).verdict == "ok"
    assert "ssh is not installed" in checks.tunnel(None).detail


def answer_with_malformed_settings(folder, *arguments):
    (folder / "jobqueue.yaml").write_text("jobqueue: [slurm: {\n", encoding="utf-8")
    command, environment = [sys.executable, "-m", *arguments], os.environ | {"DASK_CONFIG": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_settings_that_cannot_be_read_are_told_with_their_file_and_nothing_else_is_checked(tmp_path):
    done = answer_with_malformed_settings(tmp_path, "workbench", "doctor", "--json")
    assert done.returncode == 1
    *_, last = json.loads(done.stdout)["findings"]
    assert (last["check"], last["verdict"]) == ("settings", "failed")
    assert str(tmp_path / "jobqueue.yaml") in last["detail"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["workbench", "start", "2", "--scheduler", "local", "--dry-run", "--json"], 2),
        (["workbench.lab.server.form_fields"], 1),
    ],
)
def test_a_command_that_needs_settings_that_cannot_be_read_tells_their_file(tmp_path, arguments, code):
    done = answer_with_malformed_settings(tmp_path, *arguments)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["hint"]) == (
        code,
        "InvalidRequest",
        ["Repair this file, or move the file away."],
    )
    assert str(tmp_path / "jobqueue.yaml") in error["message"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("program", "guard", "verdict", "words"),
    [
        ("/bin/srun", None, "ok", "srun starts ranks"),
        ("/mpi/bin/mpiexec", "hosts", "ok", "no port of mpiexec and its daemons answers other users and hosts"),
        ("/mpi/bin/mpiexec", None, "warning", "every user who reaches the nodes can send commands to mpiexec"),
    ],
)
def test_a_launcher_that_other_users_can_command_is_a_warning(program, guard, verdict, words):
    finding = checks.launcher_of_job(WorldCommand((program,), {}, {}, guard))
    assert finding.verdict == verdict
    assert words in finding.detail
