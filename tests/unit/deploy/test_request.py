"""What cannot be is refused before anything is made, with what was given and what is allowed."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import stat
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import dask
import numpy as np
import pytest
import yaml
from hypothesis import event, given
from hypothesis import strategies as st
from support.raised import raises
from support.requested import request

from workbench.deploy import registry
from workbench.deploy import request as room
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job_spec import dask_settings, job_spec, write_dask_settings
from workbench.deploy.record import Record, from_dict
from workbench.errors import ClusterExists, InvalidRequest, LaunchError
from workbench.launch import options
from workbench.launch.mpi_library import available_cores

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    st.decimals(),
    st.fractions(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(), st.integers(), max_size=1),
)
NO_COUNTS = [
    0, -1, -(10**30), 100_001, 10**30,
    "0", "-3", "x", "", "2.5", "4.0", "1e3", "four", "9" * 5000, 2.5, -4.0,
    float("nan"), float("inf"), float("-inf"), True, False, [], [4], {}, b"4", 4j, Decimal("2.5"), Fraction(5, 2),
    object,
]  # fmt: skip
SCHEDULERS = ("auto", "local", "here", "slurm", "pbs")
MPIS = ("auto", "openmpi", "mpich", "intelmpi")
NAMES = "1 to 40 letters, digits, '.', '_' and '-', the first a letter or digit"
NO_SIZES = [
    0, -1, "0", "-2GB", "x", "", "GB", "2 apples", "GB2", 0.4, float("nan"), float("inf"), "inf", "1e400GB", True,
    False, [], {}, b"2GB", object,
]  # fmt: skip
NO_TIMES = [
    0, -1, "0", "-2 s", "x", "", "s", "2 apples", float("nan"), float("inf"), "inf", "1e400s", 10**400, True, False,
    [], {}, b"2", object,
]  # fmt: skip


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Return a registry of this test's own."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    return tmp_path / "workbench"


def name_of(value):
    """Return an id of a parameter that is short."""
    return str(value)[:20] if isinstance(value, str) else None


# counts


@pytest.mark.parametrize("what", ["ranks", "threads"])
@pytest.mark.parametrize("value", NO_COUNTS, ids=name_of)
def test_what_is_no_whole_number_from_one_on_is_refused(what, value, root):
    with raises(InvalidRequest, option=what, allowed=f"a whole number from 1 to 100000, e.g. {what}=4"):
        request(**{what: value})
    assert not root.exists()


@pytest.mark.parametrize(("value", "number"), [(1, 1), ("8", 8), (4.0, 4), (np.int64(3), 3)])
def test_whole_numbers_are_taken_in_any_form(value, number):
    assert request(value, threads=value).ranks == request(1, threads=value).threads == number


@given(ANYTHING)
def test_any_number_of_ranks_is_a_whole_number_or_refused(value):
    try:
        number = options.count("ranks", value)
    except InvalidRequest:
        event("refused")
    else:
        assert type(number) is int
        assert 1 <= number <= options.MAX_RANKS
        assert number == (int(value) if isinstance(value, str) else value)


def test_without_a_number_there_is_a_rank_for_each_core():
    assert request().ranks == available_cores()
    assert request().threads == 1


# sizes and times


@pytest.mark.parametrize("value", NO_SIZES, ids=name_of)
def test_what_is_no_size_above_zero_is_refused(value, root):
    with raises(InvalidRequest, option="memory", allowed="a size above zero for each rank, e.g. 2GB or 500MiB"):
        request(2, memory=value)
    assert not root.exists()


def test_memory_that_the_host_does_not_have_is_refused(monkeypatch):
    monkeypatch.setattr("distributed.system.MEMORY_LIMIT", 1 << 30)
    allowed = "up to 1.00 GiB for each rank, the memory of this host"
    with raises(InvalidRequest, option="memory", given="100 PB", allowed=allowed):
        request(2, memory="100 PB")


@pytest.mark.parametrize(
    ("value", "number"),
    [(None, None), ("2GB", 2 * 10**9), ("500MiB", 500 * 2**20), (2**31, 2**31), (1e9, 10**9), ("123", 123)],
)
def test_memory_is_given_in_bytes_or_in_words(value, number):
    assert request(2, memory=value).memory == number


@pytest.mark.parametrize("value", NO_TIMES, ids=name_of)
def test_what_is_no_time_above_zero_is_refused(value, root):
    with raises(InvalidRequest, option="idle_timeout", allowed="a time above zero, in seconds or as '5 minutes'"):
        request(2, idle_timeout=value)
    assert not root.exists()


@pytest.mark.parametrize("value", [1e300, 1e10, "20000 days"])
def test_a_time_that_no_wait_can_take_is_refused(value):
    with raises(InvalidRequest, option="idle_timeout", allowed="a time up to 1e+09 seconds, which are 31 years"):
        request(2, idle_timeout=value)


@pytest.mark.parametrize(("value", "number"), [(5, 5), ("5", 5), ("2 minutes", 120), (0.25, 0.25), ("250 ms", 0.25)])
def test_times_are_given_in_seconds_or_in_words(value, number):
    before = time.time()
    with dask.config.set({"workbench.start-timeout": value}):
        record = request(2, idle_timeout=value)
    assert record.idle_timeout == number
    assert record.deadline - record.created == pytest.approx(number, abs=1e-3)
    assert before <= record.created <= time.time()


def test_times_that_are_not_given_are_those_of_the_settings():
    with dask.config.set({"workbench.start-timeout": "7 s", "workbench.idle-timeout": "8 s"}):
        record = request(2)
    assert (record.deadline - record.created, record.idle_timeout) == (pytest.approx(7, abs=1e-3), 8)


@given(ANYTHING)
def test_any_memory_and_any_time_is_above_zero_or_refused(value):
    for make in (lambda given: room._bytes(given, here=True), lambda given: room.config.time_span("timeout", given)):
        try:
            number = make(value)
        except InvalidRequest:
            event("refused")
        else:
            assert number >= 0
            assert number < float("inf")


# texts


@pytest.mark.parametrize(
    "given",
    [
        {"extra": 0.5}, {"extra": 3}, {"extra": None}, {"extra": ["a", 3]}, {"extra": "a\nb"}, {"preload": 3},
        {"preload": [[]]}, {"queue": 3}, {"account": ["a"]}, {"constraint": b"a"}, {"reservation": "a\nb"},
        {"preset": np.array([1, 2])}, {"queue": "\ud800"},
    ],
)  # fmt: skip
def test_what_is_no_text_on_one_line_is_refused(given, root):
    [what] = given
    lists = "a text, or a list of texts, each on one line"
    allowed = lists if what in {"extra", "preload"} else "a text on one line"
    with raises(InvalidRequest, option=what, allowed=allowed):
        request(2, **given)
    assert not root.exists()


@pytest.mark.parametrize("choice", ["mpi", "protocol"])
def test_a_choice_that_is_no_text_is_refused(choice):
    with raises(InvalidRequest, option=choice, given="array([1, 2])"):
        request(2, **{choice: np.array([1, 2])})


@given(st.sampled_from(sorted({*inspect.signature(options.ClusterOptions).parameters})), ANYTHING)
def test_whatever_is_asked_for_is_refused_in_words_or_is_a_record_that_can_be_read(what, value):
    try:
        record = request(**{"ranks": 1, what: value})
    except (InvalidRequest, LaunchError):
        event("refused")
    else:
        assert from_dict(json.loads(json.dumps(dataclasses.asdict(record)))) == record


# choices


@pytest.mark.parametrize(
    ("option", "given", "allowed"),
    [
        ("scheduler", "locl", SCHEDULERS),
        ("scheduler", "lsf", SCHEDULERS),
        ("scheduler", 5, SCHEDULERS),
        ("mpi", "opnmpi", MPIS),
        ("mpi", "lam", MPIS),
        ("mpi", ["mpich"], MPIS),
        ("protocol", "tpc", ("mpi", "tcp")),
        ("protocol", "ucx", ("mpi", "tcp")),
        ("protocol", None, ("mpi", "tcp")),
        ("name", "a b", NAMES),
        ("name", "", NAMES),
        ("name", 5, NAMES),
    ],
)
def test_an_unknown_choice_gets_the_closest_one_and_all(option, given, allowed, root):
    with raises(InvalidRequest, option=option, given=str(given) if isinstance(given, list) else given, allowed=allowed):
        request(2, **{option: given})
    assert not root.exists()


@pytest.mark.parametrize("mpi", ["auto", "openmpi", "mpich", "intelmpi"])
@pytest.mark.parametrize("scheduler", [None, "local"])
def test_every_known_choice_is_taken(mpi, scheduler):
    record = request(2, mpi=mpi, scheduler=scheduler, name="a")
    assert (record.mpi, record.scheduler, record.name) == (mpi, "local", "a")


def test_without_a_name_the_first_free_one_is_taken():
    assert request(2).name == "mpi"
    registry.create(request(2))
    assert request(2).name == "mpi-2"


def test_a_name_that_is_taken_is_refused_when_the_cluster_is_made():
    registry.create(request(2, name="a"))
    with raises(ClusterExists, option="name", given="a"):
        registry.create(request(2, name="a"))


def test_asking_makes_nothing(root):
    request(2, name="a")
    assert not root.exists()


# the job


def test_a_job_runs_the_head_of_its_cluster_with_this_interpreter(tmp_path):
    record = Record(name="a", ranks=3, threads=2, memory=10**9)
    spec = job_spec(record, ClusterFolder.of(record))
    assert spec.command == (sys.executable, "-P", "-m", "workbench.head", "a", record.id[:16])
    assert (spec.name, spec.ranks, spec.threads, spec.memory) == ("a", 3, 2, 10**9)
    assert (spec.log, spec.script) == (
        ClusterFolder.of(record).logs / "head.log",
        ClusterFolder.of(record).path / "job.sh",
    )
    settings = dask_settings(ClusterFolder.of(record))
    assert dict(spec.environment) == {
        "JUPYTER_DATA_DIR": str(tmp_path),
        "DASK_CONFIG": str(settings),
    }


def test_a_job_has_the_dask_settings_of_this_process_but_what_only_it_can_hold():
    record = request(2, name="a")
    registry.create(record)
    with dask.config.set(
        {"workbench.keep-logs": 3, "test.nested.function": print, "test.nested.number": 1, "test.nested.pair": (1, 2)}
    ):
        write_dask_settings(record, ClusterFolder.of(record))
    assert stat.S_IMODE(dask_settings(ClusterFolder.of(record)).stat().st_mode) == 0o600
    written = yaml.safe_load(dask_settings(ClusterFolder.of(record)).read_text(encoding="utf-8"))
    assert written["workbench"]["keep-logs"] == 3
    assert written["test"] == {"nested": {"number": 1, "pair": [1, 2]}}


def test_more_ranks_than_the_host_has_memory_for_are_refused():
    with raises(InvalidRequest, option="ranks", given=90_000):
        request(90_000)


def test_a_container_has_no_more_memory_than_its_limit(monkeypatch):
    monkeypatch.setattr("distributed.system.MEMORY_LIMIT", 10**9)
    with raises(InvalidRequest, option="ranks", given=21, allowed="up to 20"):
        request(21)


def test_who_starts_the_ranks_is_checked_ahead_of_any_queue():
    with (
        dask.config.set({"workbench.mpi.launcher": "mpirun"}),
        raises(InvalidRequest, option="workbench.mpi.launcher", given="mpirun", allowed=("auto", "srun", "mpiexec")),
    ):
        request(2, name="a")


@pytest.mark.parametrize("key", ["mpi.extra-args", "mpi.srun-args", "world.restarts"])
def test_a_setting_of_the_head_is_checked_ahead_of_any_start(key):
    with (
        dask.config.set({f"workbench.{key}": "--mca btl tcp"}),
        raises(InvalidRequest, option=f"workbench.{key}", given="--mca btl tcp"),
    ):
        request(2, name="a")


# the template, and other things that are a matter of where the start is made


@pytest.mark.parametrize("value", ["no", 2, None])
def test_a_setting_of_the_template_that_is_neither_true_nor_false_is_refused(value):
    with (
        dask.config.set({"workbench.template": value}),
        raises(InvalidRequest, option="workbench.template", allowed="true or false"),
    ):
        request(1)


@pytest.mark.parametrize("value", ["two words", "os.", "", "4"])
def test_a_preload_that_is_no_name_of_a_module_is_refused(value):
    with raises(InvalidRequest, option="preload", given=value, allowed="the name of a module, e.g. torch"):
        request(1, preload=[value])


def test_modules_are_preloaded_in_their_order_and_each_once():
    assert request(1, preload="scipy.linalg").preload == ("scipy.linalg",)
    assert request(1, preload=["sklearn", "numpy", "sklearn"]).preload == ("sklearn", "numpy")


def test_a_start_from_a_working_directory_that_is_gone_is_refused(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidRequest):
        request(1)


def test_a_start_from_a_working_directory_whose_name_no_record_can_have_is_refused(tmp_path, monkeypatch):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xdcbung"))  # in Latin-1
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidRequest):
        request(1)


@pytest.mark.parametrize("preset", [None, "mine"])
def test_interface_and_folder_of_a_batch_job_are_those_of_the_sites_settings(preset, tmp_path, monkeypatch):
    (tmp_path / "sbatch").touch(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with dask.config.set({f"jobqueue.{preset or 'slurm'}": {"interface": "ib0", "local-directory": "/scratch"}}):
        record = request(2, scheduler="slurm", preset=preset)

    assert (record.interface, record.local_directory) == ("ib0", "/scratch")
    assert request(2, scheduler="local").interface is None


@pytest.mark.parametrize("given", [1, "2"])
def test_a_cluster_without_batch_jobs_has_no_next_job(given):
    with raises(InvalidRequest, option="resubmit", given=int(given)):
        request(2, scheduler="local", resubmit=given)
    assert request(2, scheduler="local", resubmit=0).resubmit == 0


@pytest.mark.parametrize("given", [-1, True, "x"])
def test_a_number_of_further_jobs_is_a_whole_number_from_0_on(given):
    with raises(InvalidRequest, option="resubmit", given=given):
        request(2, scheduler="slurm", resubmit=given)


def test_the_folder_of_what_is_kept_is_in_the_working_directory_by_the_name_of_the_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = request(2, name="a")
    assert record.kept_in == str(tmp_path / "workbench-kept" / f"a-{record.id[:8]}")
    assert request(2, checkpoint="run").kept_in == str(tmp_path / "run")
    assert request(2, every="2 minutes").every == 120.0


def test_who_needs_a_scheduler_that_is_silent_is_told_so_and_not_that_local_is_meant(monkeypatch, tmp_path):
    for program in ("qsub", "qstat", "qdel"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    with dask.config.set({"workbench.scheduler": "auto"}):
        with raises(InvalidRequest, option="nodes", given=2):
            request(2, nodes=2)
        with pytest.raises(InvalidRequest) as caught:
            request(2, nodes=2, scheduler="local")
    assert "PBS does not answer" not in str(caught.value)
