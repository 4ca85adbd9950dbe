"""A site's jobqueue.yaml, as centers write it."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
import sys
from pathlib import Path

import dask
import dask_jobqueue
import pytest
import yaml
from support.patience import DEADLINE
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.launch.interface import Resources
from workbench.launch.jobqueue import fill, header, presets, site, unread

Slurm = {
    "queue": "batch",
    "account": "physics",
    "walltime": "08:00:00",
    "memory": "24 GiB",
    "interface": "ib0",
    "local-directory": "/scratch",
    "shebang": "#!/bin/bash -l",
    "job-script-prologue": ["module load openmpi", "ulimit -c 0"],
    "job-extra-directives": ["--exclusive"],
    "job-directives-skip": ["--mem"],
}


def sections(**of):
    return dask.config.set({f"jobqueue.{name}": section for name, section in of.items()})


def test_every_setting_of_a_site_is_read():
    with sections(slurm=Slurm):
        read = site("slurm")
    assert dataclasses.asdict(read) == {
        "section": "slurm",
        "queue": "batch",
        "account": "physics",
        "walltime": "08:00:00",
        "memory": 24 * 2**30,
        "interface": "ib0",
        "local_directory": "/scratch",
        "shebang": "#!/bin/bash -l",
        "prologue": ("module load openmpi", "ulimit -c 0"),
        "extra": ("--exclusive",),
        "skip": ("--mem",),
        "resource_spec": None,
    }


def test_without_a_file_the_defaults_of_dask_jobqueue_hold():
    read = site("pbs")
    assert (read.section, read.queue, read.walltime, read.shebang) == ("pbs", None, "00:30:00", "#!/usr/bin/env bash")


def test_a_preset_goes_ahead_of_the_schedulers_section_and_null_counts_as_set():
    with sections(slurm=Slurm, bigmem={"queue": "big", "account": None, "job_extra_directives": ["--qos=big"]}):
        read = site("slurm", "bigmem")
        names = presets()
    assert "bigmem" in names
    assert (read.section, read.queue, read.account) == ("bigmem", "big", None)
    assert (read.extra, read.walltime, read.interface) == (("--qos=big",), "08:00:00", "ib0")


def test_an_unknown_preset_is_refused_with_the_close_one():
    with (
        sections(bigmem={"queue": "big"}),
        raises(InvalidRequest, option="preset", given="bigmen", allowed=("bigmem",)),
    ):
        site("slurm", "bigmen")


@pytest.mark.parametrize("name", ["lsf", "pbs", "local"])
def test_the_section_of_another_scheduler_is_no_preset(name):
    with raises(InvalidRequest, option="preset", given=name):
        site("slurm", name)


def test_the_former_names_of_settings_are_honored_and_the_present_ones_win():
    former = {"project": "old", "env-extra": ["module load a"], "job-extra": ["--x"], "header-skip": ["-A"]}
    with sections(old=former, both={**former, "account": "new", "job-extra-directives": ["--y"]}):
        old, both = site("slurm", "old"), site("slurm", "both")
    assert (old.account, old.prologue, old.extra, old.skip) == ("old", ("module load a",), ("--x",), ("-A",))
    assert (both.account, both.extra) == ("new", ("--y",))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queue", ["a"]),
        ("queue", "a\nb"),
        ("account", True),
        ("memory", "much"),
        ("memory", -1),
        ("job-extra-directives", "--exclusive"),
        ("job-extra-directives", {"a": "b"}),
        ("walltime", ["1"]),
        ("job-extra-directives", ["--a\n--b"]),
        ("job-script-prologue", [1]),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_and_names_its_setting(key, value):
    with (
        sections(odd={key: value}),
        raises(InvalidRequest, option=f"jobqueue.odd.{key}"),
    ):
        site("slurm", "odd")


def test_a_section_that_is_no_section_is_taken_for_an_empty_one():
    with sections(odd="x"):
        assert "odd" not in presets()


def test_yaml_reads_an_unquoted_walltime_in_base_60_and_it_is_the_same_time():
    with sections(odd={"walltime": 5400}):
        assert site("slurm", "odd").walltime == "01:30:00"


def test_the_memory_of_a_slurm_job_is_in_binary_units_as_slurm_means_them():
    with sections(a={"job-mem": "4G"}, b={"job-mem": "4GB", "memory": "1 GB"}, c={"memory": "4 GB"}):
        assert [site("slurm", name).memory for name in "abc"] == [4 * 2**30, 4 * 2**30, 4 * 10**9]


def test_a_bare_number_of_job_mem_is_what_the_scheduler_takes_it_for():
    with sections(a={"job-mem": "4000"}, b={"job-mem": 4000}, c={"job-mem": 0, "memory": "1 GB"}):
        assert [site("slurm", name).memory for name in "abc"] == [4000 * 2**20, 4000 * 2**20, 0]
        assert [site("pbs", name).memory for name in "abc"] == [4000, 4000, 0]


def test_a_mapping_without_values_and_a_set_are_lists_as_in_dask_jobqueue():
    with sections(a={"job-extra": {}}, b={"job-extra": {"-C fast": None}}, c={"header-skip": {"-t", "--mem"}}):
        assert [site("slurm", name).extra for name in "ab"] == [(), ("-C fast",)]
        assert site("slurm", "c").skip == ("--mem", "-t")


def test_a_value_that_is_not_valid_is_told_with_its_file(tmp_path, monkeypatch):
    (tmp_path / "jobqueue.yaml").write_text("jobqueue: {odd: {walltime: 30x, job_extra: 3}}", encoding="utf-8")
    monkeypatch.setattr(dask.config, "paths", [str(tmp_path)])
    where = rf"The setting is in {tmp_path}/jobqueue\.yaml"
    with sections(odd={"walltime": "30x"}), pytest.raises(InvalidRequest, match=f"odd.walltime '30x'.*{where}"):
        fill(Resources(), site("slurm", "odd"), ranks=1, minute=60)
    with sections(odd={"job-extra": 3}), raises(InvalidRequest, option="jobqueue.odd.job-extra"):
        site("slurm", "odd")


def settings_of_dask_jobqueue(scheduler):
    """Return the keys that dask-jobqueue itself reads for a scheduler, by its defaults and its code."""
    folder = Path(dask_jobqueue.__file__).parent
    code = "".join((folder / f"{name}.py").read_text() for name in ("core", scheduler))
    defaults = yaml.safe_load((folder / "jobqueue.yaml").read_text())["jobqueue"][scheduler]
    return defaults.keys() | set(re.findall(r"jobqueue\.%s\.([\w-]+)", code))


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_every_setting_of_dask_jobqueue_is_read_or_told_not_to_be_used(scheduler):
    keys = settings_of_dask_jobqueue(scheduler)
    assert len(keys) > 20
    for key in keys:
        with sections(odd={key: "1"}):
            told = refused_or_unread(scheduler)
        assert not any("is not read" in sentence for sentence in told), (key, told)


def refused_or_unread(scheduler):
    try:
        return unread(scheduler, "odd")
    except InvalidRequest:
        return []


def test_settings_without_an_effect_are_named_with_the_reason_and_the_closest_setting():
    odd = {"cores": 4, "processes": 1, "job-extra-directive": ["--qos=x"], "partition": "main", "death-timeout": 60}
    with sections(odd=odd, queue="main"):
        told = unread("slurm", "odd")
    assert told == [
        "jobqueue.queue is not read: settings belong to a section of jobqueue, for example jobqueue.slurm",
        "jobqueue.odd.job-extra-directive is not read: did you mean job-extra-directives?",
        "jobqueue.odd.partition is not read",
        "not used: cores, processes of jobqueue.odd, because nodes, ranks and threads are those of the cluster",
    ]
    assert unread("slurm") == []


@pytest.mark.parametrize("text", ["slurm: {queue: main}", "jobqueue: {pbs: {queue: main}}", "jobqueue: {slurm:}"])
def test_a_file_without_settings_for_the_scheduler_is_named(tmp_path, monkeypatch, text):
    (tmp_path / "jobqueue.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "dask.yaml").write_text("temporary-directory: /a", encoding="utf-8")
    monkeypatch.setattr(dask.config, "paths", [str(tmp_path)])
    assert unread("slurm") == [f"no settings for slurm (jobqueue.slurm) are in {tmp_path}/jobqueue.yaml"]
    with sections(bigmem={"queue": "big"}):
        assert unread("slurm") == []


def test_a_header_is_that_of_dask_jobqueue_without_its_geometry():
    with sections(slurm={**Slurm, "queue": "other"}):
        read = dataclasses.replace(site("slurm"), queue="batch", skip=("-p",))
        lines = header("slurm", read)
    assert lines == ["#SBATCH -p batch", "#SBATCH -A physics", "#SBATCH -t 08:00:00", "#SBATCH --exclusive"]
    assert header("pbs", read) == ["#PBS -q batch", "#PBS -A physics", "#PBS -l walltime=08:00:00", "#PBS --exclusive"]


def test_a_header_has_nothing_that_is_not_set_and_leaves_no_settings_behind():
    with sections(slurm={**Slurm, "job-extra": ["--former"]}):
        bare = dataclasses.replace(site("slurm"), queue=None, account=None, walltime=None, extra=())
        before = dict(dask.config.get("jobqueue"))
        assert header("slurm", bare) == []
        assert dask.config.get("jobqueue") == before


@pytest.mark.parametrize("where", ["main", "thread"])
def test_reading_settings_leaves_ctrl_c_alone_in_the_main_thread_and_works_in_any_other(where):
    code = f"""
import signal, threading
from workbench.launch.jobqueue import site
before, function, found = signal.getsignal(signal.SIGINT), signal.signal, []
work = lambda: found.append(site("slurm"))
if {where == "thread"}:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
assert found
assert signal.getsignal(signal.SIGINT) is before
assert signal.signal is function
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE)


def test_signals_of_other_threads_are_set_while_settings_are_read():
    site("slurm")
    before = signal.getsignal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    assert signal.signal(signal.SIGUSR2, before) is signal.SIG_IGN


def filled(ranks, **given):
    with sections(slurm=Slurm):
        return fill(Resources(**given), site("slurm"), ranks=ranks, minute=60)


@pytest.mark.parametrize(
    ("ranks", "given", "whole"),
    [
        (8, {}, (None, None)),
        (8, {"nodes": 4}, (4, 2)),
        (9, {"nodes": 4}, (4, 3)),
        (9, {"ranks_per_node": 4}, (3, 4)),
        (8, {"nodes": 4, "ranks_per_node": 3}, (4, 3)),
        (1, {"nodes": 1}, (1, 1)),
    ],
)
def test_a_geometry_is_made_whole(ranks, given, whole):
    found = filled(ranks, **given)
    assert (found.nodes, found.ranks_per_node) == whole


@pytest.mark.parametrize(("ranks", "nodes", "each"), [(8, 3, 2), (2, 4, None), (2, 4, 1)])
def test_a_geometry_that_does_not_hold_the_ranks_is_refused(ranks, nodes, each):
    with raises(InvalidRequest, option="nodes", given=nodes):
        filled(ranks, nodes=nodes, ranks_per_node=each)


def test_what_was_given_goes_ahead_of_the_site():
    assert filled(8) == Resources(queue="batch", account="physics", walltime=28800)
    given = Resources(queue="a", account="b", walltime=60)
    assert filled(8, queue="a", account="b", walltime=60) == given
    assert filled(8, queue="a", account="b", walltime="1 minute") == given
