"""The script of a PBS job: directives as text, and the script itself, run."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import csh
from support.patience import DEADLINE

from workbench.errors import InvalidRequest
from workbench.launch.interface import JobSpec, Resources
from workbench.launch.jobqueue import site
from workbench.launch.pbs_parse import CODE_NO_COMMAND, CODE_NO_OUTPUT
from workbench.launch.pbs_script import Flavor, directives, job_name, requests, script_text

NASTY = 'it\'s $HOME "quoted" `date` \\n; exit 3'
MIB = 2**20


def spec(folder=Path("/data/user1"), *, ranks=4, threads=1, memory=None, command=("/bin/true",), **asked):
    return JobSpec(
        name="mpi", ranks=ranks, threads=threads, memory=memory, command=command, log=folder / "head.log",
        script=folder / "job.sh", environment=(("NASTY", NASTY),), resources=Resources(**asked), directory=folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        (spec(), ["select=4:ncpus=1:mpiprocs=1:ompthreads=1"]),
        (spec(nodes=2, ranks_per_node=2), ["select=2:ncpus=2:mpiprocs=2:ompthreads=1", "place=scatter"]),
        (
            spec(ranks=64, threads=2, memory=1536 * MIB, nodes=4, ranks_per_node=16),
            ["select=4:ncpus=32:mpiprocs=16:ompthreads=2:mem=24576mb", "place=scatter"],
        ),
        # rank after rank fills node after node
        (
            spec(ranks=10, nodes=3, ranks_per_node=4),
            ["select=2:ncpus=4:mpiprocs=4:ompthreads=1+1:ncpus=2:mpiprocs=2:ompthreads=1", "place=scatter"],
        ),
        # ... but no node stays empty
        (
            spec(ranks=9, nodes=4, ranks_per_node=3),
            ["select=1:ncpus=3:mpiprocs=3:ompthreads=1+3:ncpus=2:mpiprocs=2:ompthreads=1", "place=scatter"],
        ),
        (
            spec(nodes=2, ranks_per_node=2, gpus_per_rank=1, constraint="model=bro"),
            ["select=2:ncpus=2:mpiprocs=2:ompthreads=1:ngpus=2:model=bro", "place=scatter"],
        ),
        (
            spec(nodes=2, ranks_per_node=2, extra=("-l place=scatter:excl",)),
            ["select=2:ncpus=2:mpiprocs=2:ompthreads=1"],
        ),
    ],
)
def test_nodes_are_asked_for_by_chunks(job, asked):
    assert requests(job, Flavor.PRO, None) == asked


def test_memory_of_the_site_is_that_of_a_node():
    assert requests(spec(nodes=4, ranks_per_node=1), Flavor.PRO, 10**9)[0].endswith(":mem=954mb")
    assert requests(spec(nodes=4, ranks_per_node=1, memory=MIB), Flavor.PRO, 10**9)[0].endswith(":mem=1mb")
    assert "mem" not in requests(spec(), Flavor.PRO, 10**9)[0]


def test_the_emulation_is_asked_for_chunks_of_one_kind():
    assert requests(spec(ranks=10, nodes=3, ranks_per_node=4, constraint="bigmem"), Flavor.EMULATION, None) == [
        "select=3:ncpus=4:mpiprocs=4:ompthreads=1",
        "proc=bigmem",
    ]


def test_the_script_says_what_is_asked_for():
    job = spec(nodes=2, ranks_per_node=2, queue="workq", account="hpc", walltime=129600, extra=("-m n",))
    text = script_text(job, replace(site("pbs"), prologue=("module load mpi",)), Flavor.PRO)
    lines = text.splitlines()
    assert lines[:12] == [
        "#!/usr/bin/env bash",
        "#PBS -N mpi",
        "#PBS -l select=2:ncpus=2:mpiprocs=2:ompthreads=1",
        "#PBS -l place=scatter",
        "#PBS -S /bin/bash",
        "#PBS -j oe",
        "#PBS -o localhost:/dev/null",
        "#PBS -r n",
        "#PBS -q workq",
        "#PBS -A hpc",
        "#PBS -l walltime=36:00:00",
        "#PBS -m n",
    ]
    assert lines.index("module load mpi") > lines.index("exec >>/data/user1/head.log 2>&1 </dev/null")


@pytest.mark.parametrize("flavor", [Flavor.PRO, Flavor.EMULATION])
def test_the_next_job_of_a_cluster_begins_after_the_present_one_and_may_be_started_again(flavor):
    lines = script_text(replace(spec(), after="17.pbshead", requeue=True), site("pbs"), flavor).splitlines()
    assert {"#PBS -W depend=afterany:17.pbshead", "#PBS -r y"} <= {*lines}
    assert "#PBS -r n" not in lines


def test_the_output_of_the_emulation_names_no_host():
    assert "#PBS -o /dev/null" in script_text(spec(), site("pbs"), Flavor.EMULATION).splitlines()


def test_a_reservation_is_a_queue():
    assert "#PBS -q R7\n" in script_text(spec(reservation="R7.pbshead", walltime=60), site("pbs"), Flavor.PRO)


def test_what_the_site_skips_is_left_out_by_directive():
    job = spec(nodes=2, ranks_per_node=2, queue="a-Job-oe", account="hpc", walltime=60)
    whole = script_text(job, site("pbs"), Flavor.PRO).splitlines()
    kept = script_text(job, replace(site("pbs"), skip=("-j", "#PBS -N")), Flavor.PRO).splitlines()
    assert set(whole) - set(kept) == {"#PBS -j oe", "#PBS -N mpi"}


def test_the_geometry_cannot_be_skipped():
    job = spec(nodes=2, ranks_per_node=2, walltime=60)
    assert script_text(job, replace(site("pbs"), skip=("-l select", "mem=")), Flavor.PRO) == script_text(
        job, site("pbs"), Flavor.PRO
    )


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("mpi", "mpi-01234567"),
        ("7 a/b", "w7_a_b-01234567"),
        ("", "w-01234567"),
        ("é", "w_-01234567"),
        ("a" * 300, "a" * 221 + "-01234567"),
    ],
)
def test_the_name_of_a_job_is_a_legal_one(name, legal):
    assert job_name(name, "0123456789abcdef:job") == legal


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("-lwalltime=1:00:00", {"-l walltime"}),
        ("#PBS -l select=1:ncpus=2,place=excl -q x", {"-l select", "-l place", "-q"}),
        ("-W depend=afterok:1,block=true", {"-W depend", "-W block"}),
        ("-N='a -q b'", {"-N"}),
        ("-m n # -q x", {"-m"}),
        ("-V", {"-V"}),
        ("", set()),
    ],
)
def test_directives_are_known_by_what_they_set(text, found):
    assert directives(text.removeprefix("#PBS")) == found


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_script_becomes_the_command_whatever_is_in_its_words(tmp_path, shell):
    folder = tmp_path / NASTY
    folder.mkdir()
    code = 'printf "%s\\n" "$NASTY" "$1"; umask; printf "%s\\n" "$PWD"; exit 5'
    job = spec(folder, command=("/bin/sh", "-c", code, "-", NASTY), walltime=60)
    job.script.write_text(script_text(job, site("pbs"), Flavor.PRO), encoding="utf-8")
    done = subprocess.run([shell, str(job.script)], cwd="/", capture_output=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (5, b"", b"")
    assert job.log.read_text(encoding="utf-8").splitlines() == [NASTY, NASTY, "0077", str(folder)]


def test_the_prologue_of_a_c_shell_runs_in_it_and_the_rest_in_sh(tmp_path):
    mine = replace(site("pbs"), shebang=f"#!{csh.install(tmp_path)}", prologue=("setenv SITE 1",))
    job = spec(tmp_path, command=("/bin/sh", "-c", 'printf "%s\n" "$SITE" "$NASTY"; cat; exit 5'))
    job.script.write_text(script_text(job, mine, Flavor.PRO), encoding="utf-8")
    # The directive -S names bash.
    assert subprocess.run(["/bin/bash", job.script], check=False, timeout=DEADLINE).returncode == 5
    assert job.log.read_text(encoding="utf-8").splitlines() == ["1", NASTY]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_node_without_the_folders_of_the_user_is_told(tmp_path, shell):
    job = spec(tmp_path / "missing")
    text = script_text(job, site("pbs"), Flavor.PRO)
    assert subprocess.run([shell, "-c", text], check=False, timeout=DEADLINE).returncode == CODE_NO_OUTPUT
    job = spec(tmp_path, command=("/no/such/python",))
    text = script_text(job, site("pbs"), Flavor.PRO)
    assert subprocess.run([shell, "-c", text], check=False, timeout=DEADLINE).returncode == CODE_NO_COMMAND
    assert "/no/such/python" in job.log.read_text(encoding="utf-8")
    assert "not shared with this node" in job.log.read_text(encoding="utf-8")


def test_a_value_of_several_lines_is_refused():
    with pytest.raises(InvalidRequest):
        script_text(spec(queue="a\n#PBS -l nodes=9"), site("pbs"), Flavor.PRO)
