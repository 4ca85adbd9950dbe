"""Job scripts for generated files of a site: the directives are those of dask-jobqueue, apart from the list below."""

from __future__ import annotations

import math
import random
import re
import shlex
import warnings
from pathlib import Path

import dask
import pytest
from dask_jobqueue.pbs import PBSJob
from dask_jobqueue.slurm import SLURMJob

from workbench.errors import InvalidRequest
from workbench.launch import pbs_script, slurm_script
from workbench.launch.interface import JobSpec
from workbench.launch.jobqueue import site, unread
from workbench.launch.options import Resources
from workbench.launch.pbs_script import Flavor, script_text
from workbench.launch.slurm_script import script

# What differs, as the table of docs/site-setup.md has it.
OURS = {
    "slurm": {"--job-name", "--comment", "--output", "--error", "--open-mode", "--signal", "--requeue", "--no-requeue",
              "--chdir", "--nodes", "--ntasks", "--cpus-per-task"},
    "pbs": {"-N", "-S", "-j", "-o", "-e", "-r", "-l select", "-l ncpus", "-l mem"},
}  # fmt: skip
BREAKING = {"slurm": ("-M other", "--array=1-3"), "pbs": ("-J 1-4", "-I")}
EXTRA = {
    "slurm": (
        "--qos=high", "-q low", "--exclusive", "-C fast", "--constraint='a&(b|c)'", "--gres=gpu:1", "--mem=0", "-t 90",
        "--mem-per-cpu=2G", "--mem-per-gpu 4G", "-t 03:00:00", "--time=1-0", "-t0", "-p other", "--partition=third",
        "-A second", "--account third", "--nodes=2", "-N1", "-n 4", "-o /site/%j", "-e err", "-J dask", "-D /site",
        "--comment='an app'", "--signal=USR1", "--mail-user a@b.c", "--hint=nomultithread --exclusive", "--nice=5",
        "--reservation=r", "--requeue", "--gpus-per-task=2", "-w n[1-2]", "--export=ALL,A=1",
    ),
    "pbs": (
        "-l walltime=03:00:00", "-l software=abc,mem=4gb", "-q other", "-A second", "-m n", "-M a@b.c", "-V", "-p 5",
        "-W group_list=a,b", "-W umask=022,group_list=c", "-l place=excl", "-N dask", "-j oe", "-o /site/log", "-r y",
        "-k oe", "-l fs=home:work -m a", "-v A=1,B=2", "-l ncpus=4", "-l walltime=90",
    ),
}  # fmt: skip
VALUES = {
    "cores": (1, 4), "processes": (1,), "name": ("dask",), "python": ("python3",), "interface": ("ib0",),
    "death-timeout": (30,), "local-directory": ("$TMPDIR",), "extra": (["--x"],), "worker-command": ("x",),
    "worker-extra-args": (["--lifetime", "25m"],), "shared-temp-directory": ("/site",), "job-cpu": (3, None),
    "scheduler-options": ({"port": 0},), "shebang": ("#!/bin/bash",), "env-extra": (["module load a"],),
    "job-script-prologue": (["module load b"], []), "queue": ("main", 5, None), "account": ("first", None),
    "project": ("former",), "job-mem": ("4G", "4000", 4000, 0, "0", "3GB", None),
}  # fmt: skip
CHOICES = {
    "slurm": {
        "walltime": ("02:00:00", "120", "2-00:00:00", "120:30", "UNLIMITED", "0", "00:90:00", None),
        "skip": ("--mem", "-t ", "-p ", "-A ", "-n ", "mem", "-J", "--cpus-per-task"),
    },
    "pbs": {
        "walltime": ("02:00:00", "7200", "90:00", None),
        "skip": ("-l walltime", "walltime", "-q ", "-A ", "-N"),
        "resource-spec": (
            None,
            "select=1:ncpus=4:mem=8gb",
            "select=1:ncpus=4:model=abc:mem=8gb,place=scatter:excl",
            "select=2:model=abc,fs=home:work",
            "ncpus=4,mem=8gb",
        ),
    },
}
LONG = {
    "-A": "--account", "-C": "--constraint", "-D": "--chdir", "-J": "--job-name", "-N": "--nodes", "-e": "--error",
    "-n": "--ntasks", "-o": "--output", "-p": "--partition", "-q": "--qos", "-t": "--time",
}  # fmt: skip
DAY = pytest.param(100, id="every day")
THOUSAND = pytest.param(1000, id="long", marks=pytest.mark.long)


def section(draw: random.Random, scheduler: str) -> dict:
    """Return a section of a file with some of the settings of dask-jobqueue."""

    def some(values, most):
        lines = draw.sample(values, draw.randint(0, most))
        return draw.choice([lines, tuple(lines), dict.fromkeys(lines)])

    choices = {**VALUES, **CHOICES[scheduler]}
    drawn = {key: draw.choice(values) for key, values in choices.items() if key != "skip" and draw.random() < 0.4}
    if scheduler == "pbs":
        drawn.pop("job-mem", None)
    for key in ("job-extra", "job-extra-directives"):
        if draw.random() < 0.6:
            breaking = BREAKING[scheduler] if draw.random() < 0.1 else ()
            drawn[key] = some((*EXTRA[scheduler], *breaking), 5)
    for key in ("header-skip", "job-directives-skip"):
        if draw.random() < 0.3:
            drawn[key] = some(CHOICES[scheduler]["skip"], 3)
    return {**drawn, "cores": 2, "memory": draw.choice(["4GB", "12 GiB", "500MB"])}


def their_directives(scheduler: str) -> list[str]:
    job = {"slurm": SLURMJob, "pbs": PBSJob}[scheduler]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        header = job(scheduler="tcp://x", name="w", config_name="site").job_header
    return [line.partition(" ")[2] for line in header.splitlines()]


def our_directives(scheduler: str) -> tuple[list[str], list[str]]:
    """Return the directives of the script, and the notices."""
    raw, asked = site(scheduler, "site"), Resources(preset="site")
    path = Path("/a")
    if scheduler == "slurm":
        read = slurm_script.by_directives(raw)
        settled = slurm_script.resolve(asked, read, {}, ranks=1, memory=None)
        assert slurm_script.resolve(settled, read, {}, ranks=1, memory=None) == settled
        spec = JobSpec("w", 1, 1, None, ("x",), path, path, resources=settled)
        text, notices = script(spec, read, None), slurm_script.left_out(read, settled, None)
    else:
        read = pbs_script.by_directives(raw, {})
        settled = pbs_script.resolve(asked, read, Flavor.PRO, ranks=1)
        assert pbs_script.resolve(settled, read, Flavor.PRO, ranks=1) == settled
        spec = JobSpec("w", 1, 1, None, ("x",), path, path, resources=settled)
        text, notices = script_text(spec, read, Flavor.PRO), pbs_script.left_out(read)
    lines = [line for line in text.splitlines() if line.startswith("#") and not line.startswith("#!")]
    return [line.partition(" ")[2] for line in lines], notices


def values(directives: list[str], scheduler: str) -> dict[str, object]:
    """Return the value of each option as the scheduler has it at the end, when the last of an option has won."""
    found: dict[str, object] = {}
    for line in directives:
        words = shlex.split(line)
        starts = [i for i, word in enumerate(words) if re.match(r"--?[A-Za-z]", word)]
        for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
            name, rest = words[start], " ".join(words[start + 1 : end])
            if name.startswith("--"):
                name, _, value = name.partition("=")
                value = value or rest
            else:
                name, value = LONG.get(name[:2], name[:2]) if scheduler == "slurm" else name[:2], name[2:] or rest
            if scheduler == "pbs" and name in ("-l", "-W"):
                for part in re.split(r",(?=\w+=)", value):
                    key, _, amount = part.partition("=")
                    found[f"{name} {key}"] = seconds(amount, 1) if key == "walltime" else amount
            elif name in ("--mem", "--mem-per-cpu", "--mem-per-gpu"):
                found["memory"] = (name, mebibytes(value))
            else:
                found[name] = seconds(value, 60) if name == "--time" else value
    return found


def seconds(text: str, unit: int) -> float:
    if text in ("0", "UNLIMITED"):
        return math.inf
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    sizes = (3600, 60, 1) if dash else {1: (unit,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
    return int(days or 0) * 86400 + sum(part * size for part, size in zip(parts, sizes, strict=False))


def mebibytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG]?)B?", text).groups()
    return math.ceil(int(number) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024}[unit])


def differences(scheduler: str, given: dict) -> str:
    """Return how the directives for a section differ; empty if only as they should."""
    with dask.config.set({f"jobqueue.{scheduler}": {}, "jobqueue.site": {**DEFAULTS[scheduler], **given}}):
        theirs = their_directives(scheduler)
        try:
            ours, notices = our_directives(scheduler)
        except InvalidRequest as error:
            return "" if any(line in BREAKING[scheduler] for line in theirs) else str(error)
        assert not [notice for notice in unread(scheduler, "site") if "not read" in notice]
    mine, others = values(ours, scheduler), values(theirs, scheduler)
    # dask-jobqueue rounds `memory` up to GiB.
    if "memory" in mine and mine["memory"][1] % 1024 and "memory" in others and not given.get("job-mem"):
        mine["memory"] = (mine["memory"][0], min(others["memory"][1], math.ceil(mine["memory"][1] / 1024) * 1024))
    wrong = {
        name: (mine.get(name), others.get(name))
        for name in (mine.keys() | others.keys()) - OURS[scheduler]
        if mine.get(name) != others.get(name)
    }
    if "model=abc" in str(others.get("-l select")) and "model=abc" not in str(mine["-l select"]):
        wrong["-l select"] = (mine["-l select"], others["-l select"])
    extra = given.get("job-extra-directives") or given.get("job-extra") or ()
    lost = set(values(list(extra), scheduler)) & OURS[scheduler] - {"--no-requeue"}
    unnamed = [name for name in lost if not any(name in notice for notice in notices)]
    return f"{wrong} {unnamed} {given}" if wrong or unnamed else ""


DEFAULTS = {name: dask.config.get(f"jobqueue.{name}") for name in ("slurm", "pbs")}


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
@pytest.mark.parametrize("files", [DAY, THOUSAND])
def test_the_directives_are_those_of_dask_jobqueue_apart_from_the_listed_ones(scheduler, files):
    draw = random.Random(files)
    wrong = [found for _ in range(files) if (found := differences(scheduler, section(draw, scheduler)))]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_files_are_generated_with_every_setting_of_dask_jobqueue(scheduler):
    draw = random.Random(0)
    drawn = {key for _ in range(300) for key in section(draw, scheduler)}
    assert DEFAULTS[scheduler].keys() - drawn == {"log-directory"}  # dask-jobqueue creates the folder
