"""Jobs of Slurm: scripts and answers as text, and commands that answer in bad ways."""

from __future__ import annotations

import dataclasses
import re
import stat
import subprocess
import time
from pathlib import Path

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import csh
from support.patience import DEADLINE
from support.raised import raises

from workbench.deploy.start import preview
from workbench.errors import InvalidRequest, JobRejected, LaunchError, SchedulerTimeout
from workbench.launch.interface import UNKNOWN, JobSpec, JobState, JobStatus, Resources
from workbench.launch.options import ClusterOptions
from workbench.launch.slurm import SlurmLauncher, available
from workbench.launch.slurm_parse import (
    ACCOUNT_FORMAT,
    PARTITION_FORMAT,
    QUEUE_FORMAT,
    SEPARATOR,
    error_text,
    expectation,
    parse_accounting,
    parse_partitions,
    parse_queue,
    rejection,
)
from workbench.launch.slurm_script import option, overriding, quoted

Slurm = SlurmLauncher()
# As of Slurm 22.05: the formats of `sinfo` and `squeue` with bars for separators.
PARTITIONS = """\
debug*|infinite|4|2|4000|odd,fast|1-infinite
debug*|infinite|2|8+|16000+|even|1-infinite
short|5:00|4|2|4000|(null)|1
wide|5:00|4|2|4000|(null)|2-4
"""
QUEUE = """\
1|RUNNING|None|2026-11-21T18:53:14|2026-11-21T19:03:14|n[1-4]
2|PENDING|Resources|2026-11-21T19:03:14|N/A|
3|PENDING|PartitionTimeLimit|N/A|N/A|
4|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-2]|N/A|N/A|
5|PENDING|QOSMaxCpuPerUserLimit|N/A|N/A|
6|PENDING|Nodes required for job are DOWN, DRAINED|N/A|N/A|
7|CANCELLED|Resources|2026-11-21T18:53:20|2026-11-21T18:53:20|
8|TIMEOUT|TimeLimit|2026-11-21T18:53:14|2026-11-21T18:54:14|n1
9|NODE_FAIL|NodeDown|2026-11-21T18:53:14|2026-11-21T18:54:14|n[1-4]
10|FAILED|NonZeroExitCode|2026-11-21T18:53:14|2026-11-21T18:53:14|n1
11|CONFIGURING|None|2026-11-21T18:53:14|N/A|n1
12|SUSPENDED|None|2026-11-21T18:53:14|N/A|n1
13|COMPLETED|None|2026-11-21T18:53:14|2026-11-21T18:53:15|n1
14|COMPLETING|None|2026-11-21T18:53:14|2026-11-21T18:53:15|n1
15|PREEMPTED|None|2026-11-21T18:53:14|2026-11-21T18:53:15|n1
16|MOON|Reasonless|when|then|n1
17|PENDING|JobHeldUser|N/A|N/A|
18|REQUEUE_HOLD|JobHoldMaxRequeue|N/A|N/A|
19|FAILED|JobLaunchFailure|2026-11-27T15:24:21|2026-11-27T15:24:30|n2
20|FAILED|JobLaunchFailure|2026-11-27T15:24:21|2026-11-27T15:24:21|n2
"""


def bars(text):
    return text.replace("|", SEPARATOR)


def jobs(text):
    """Return lines of `squeue` or `sacct`, each with the name and the comment of a job behind it."""
    return "".join(f"{line}{SEPARATOR}training{SEPARATOR}workbench:abc:job\n" for line in bars(text).splitlines())


def spec_in(folder: Path, **changes) -> JobSpec:
    resources = Resources(nodes=4, ranks_per_node=2, walltime=7200)
    values = {
        "name": "mpi", "ranks": 8, "threads": 2, "memory": None, "command": ("/bin/echo", "hello"),
        "log": folder / "head.log", "script": folder / "job.sh", "resources": resources, "directory": folder, **changes,
    }  # fmt: skip
    return JobSpec(**values)


def directives(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def settle(*, ranks=8, threads=1, memory=None, **asked):
    return Slurm.resolve(Resources(**asked), ranks=ranks, threads=threads, memory=memory)


def settings(**section):
    return dask.config.set({"jobqueue.slurm": section})


@pytest.fixture(autouse=True)
def no_variables_of_sbatch(monkeypatch):
    for name in ("PARTITION", "ACCOUNT", "CONSTRAINT", "RESERVATION"):
        monkeypatch.delenv(f"SBATCH_{name}", raising=False)


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Return a function that puts a command on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def put(name, body):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    # The real one may be there, and know nothing.
    put("sacct", "exit 1")
    return put


def test_a_script_asks_for_the_geometry_of_the_world(tmp_path):
    assert directives(Slurm.script(spec_in(tmp_path))) == [
        "--job-name=mpi",
        "--comment=workbench:",
        f"--output={tmp_path}/head.log",
        "--open-mode=append",
        "--nodes=4",
        "--ntasks=8",
        "--ntasks-per-node=2",
        "--cpus-per-task=2",
        "--signal=B:USR1@120",
        "--no-requeue",
        "-t 02:00:00",
    ]


def test_a_script_has_all_that_was_asked_for(tmp_path):
    asked = Resources(
        walltime=129600, queue="big mem", account="it's", constraint="gpu&(ib|eth)", reservation="r", gpus_per_rank=2,
        extra=("--qos=high", "--mail-user 'a b'"),
    )  # fmt: skip
    lines = directives(Slurm.script(spec_in(tmp_path, memory=3 * 2**30 + 1, threads=2, resources=asked)))
    assert lines[3:] == [
        "--open-mode=append",
        "--ntasks=8",
        "--cpus-per-task=2",
        "--mem-per-cpu=1537M",
        "--constraint=gpu&(ib|eth)",
        "--reservation=r",
        "--gpus-per-task=2",
        "--signal=B:USR1@120",
        "--no-requeue",
        '-p "big mem"',
        '-A "it\'s"',
        "-t 1-12:00:00",
        "--qos=high",
        "--mail-user 'a b'",
    ]


def test_the_next_job_of_a_cluster_begins_after_the_present_one_and_may_be_started_again(tmp_path):
    lines = directives(Slurm.script(spec_in(tmp_path, after="4711", requeue=True)))
    assert {"--dependency=afterany:4711", "--kill-on-invalid-dep=yes", "--requeue"} <= {*lines}
    assert "--no-requeue" not in lines


def test_the_sites_first_line_prologue_and_memory_are_in_the_script_and_what_it_skips_is_not(tmp_path):
    with settings(**{
        "shebang": "#!/bin/bash -l", "job-script-prologue": ["module load openmpi"], "memory": "24 GiB",
        "job-directives-skip": ["--open-mode", "-t", "#SBATCH -n 1", "job"],
    }):  # fmt: skip
        text = Slurm.script(spec_in(tmp_path))
        assert text.startswith("#!/bin/bash -l\n#SBATCH")
        assert "\n\nmodule load openmpi\n" in text
        assert "--mem=24576M" in directives(text)
        assert not {"--time", "--open-mode"} & {option(line) for line in directives(text)}
        assert {"--job-name", "--ntasks"} <= {option(line) for line in directives(text)}
        assert "--mem" not in {option(line) for line in directives(Slurm.script(spec_in(tmp_path, memory=2**30)))}


def test_a_directive_of_the_user_is_not_skipped(tmp_path):
    with settings(**{"job-directives-skip": ["--qos"]}):
        text = Slurm.script(spec_in(tmp_path, resources=Resources(extra=("--qos=x",))))
    assert directives(text)[-1] == "--qos=x"


def test_a_short_job_gets_no_signal_that_could_come_before_its_head(tmp_path):
    short = spec_in(tmp_path, resources=Resources(walltime=240))
    assert not any(line.startswith("--signal") for line in directives(Slurm.script(short)))


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_script_runs_with_blanks_and_quotes_in_every_value(tmp_path, shell):
    folder = tmp_path / 'it\'s "my" $HOME `x` %j'
    folder.mkdir()
    values = (("A", 'it\'s "my" $HOME'), ("B", "two\nlines"))
    program = folder / "python 3"
    program.write_text('#!/bin/sh\nprintf "%s|" "$PWD" "$A" "$B" "$@"\n')
    program.chmod(0o755)
    spec = spec_in(folder, command=(str(program), "a b", "'", '"$A"'), environment=values)
    script = tmp_path / "job.sh"
    script.write_text(Slurm.script(spec))
    done = subprocess.run([shell, script], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert done.stdout == f'{folder}|{values[0][1]}|{values[1][1]}|a b|\'|"$A"|'


def test_the_prologue_of_a_c_shell_runs_in_it_and_the_rest_in_sh(tmp_path):
    shebang = f"#!{csh.install(tmp_path)}"
    command = ("/bin/sh", "-c", 'printf "%s|" "$SITE" "$A" "$1"; cat; exit 5', "-", "it's $HOME !! `x`")
    spec = spec_in(tmp_path, command=command, environment=(("A", 'two\n"lines"'),))
    with settings(**{"shebang": shebang, "job-script-prologue": ["setenv SITE 1"]}):
        spec.script.write_text(Slurm.script(spec), encoding="utf-8")
    spec.script.chmod(0o755)
    done = subprocess.run([spec.script], capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (5, '1|two\n"lines"|it\'s $HOME !! `x`|', "")


@pytest.mark.parametrize(("what", "folder", "program"), [("Python", ".", "not here"), ("folder", "it's gone", "x")])
def test_a_node_without_python_or_folder_says_so_in_one_sentence(tmp_path, what, folder, program):
    spec = spec_in(tmp_path, directory=tmp_path / folder, command=(str(tmp_path / program),))
    done = subprocess.run(
        ["/bin/sh", "-c", Slurm.script(spec)], capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    missing = tmp_path / (program if what == "Python" else folder)
    assert done.returncode == 1
    assert done.stderr.startswith(f"workbench: {missing} does not exist on ")
    assert what in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/a/b.log", "--output=/a/b.log"),
        ("/a b/%j.log", '--output="/a b/%%j.log"'),
        ('/it\'s "x"#', '--output="/it\'s \\"x\\"#"'),
        ("/back\\slash%j", '--output="/back\\\\\\\\slash%j"'),
    ],
)
def test_the_log_is_the_file_that_was_meant_whatever_its_name(tmp_path, path, line):
    assert line in directives(Slurm.script(spec_in(tmp_path, log=Path(path))))


@pytest.mark.parametrize("value", ["a\nb", "a\0b", "a\x7fb", "\r"])
def test_a_line_break_in_a_value_is_refused(value, tmp_path):
    with raises(InvalidRequest, given=value):
        quoted(value)
    with raises(InvalidRequest, option="queue", given=value):
        settle(queue=value)
    with pytest.raises(InvalidRequest):
        Slurm.script(spec_in(tmp_path, log=tmp_path / value))


def test_what_was_given_goes_ahead_of_the_users_variables_and_these_ahead_of_the_site(monkeypatch):
    with settings(queue="site", account="site", walltime="01:00:00"):
        monkeypatch.setenv("SBATCH_PARTITION", "mine")
        monkeypatch.setenv("SBATCH_CONSTRAINT", "ib")
        found = settle(nodes=4, account="given")
    assert found == Resources(nodes=4, ranks_per_node=2, queue="mine", account="given", constraint="ib", walltime=3600)


def test_resources_that_were_settled_stay_as_they_are():
    extra = ["-p other", "--qos=x -N 1", "--mem=0", "-t 1:00", "-C ib"]
    with settings(**{"queue": "site", "account": "site", "walltime": "2:00:00", "job-extra-directives": extra}):
        once = settle(nodes=4, extra=("--hold",))
        assert Slurm.resolve(once, ranks=8, threads=1, memory=None) == once
    assert once.extra == ("--qos=x", "--mem=0", "-C ib", "--hold")
    assert (once.queue, once.account, once.walltime) == ("other", "site", 60)


def test_a_directive_of_the_site_gives_way_to_what_was_given():
    with settings(**{"job-extra-directives": ["-C ib", "--mem=0", "--qos=x"]}):
        assert settle(constraint="gpu", memory=2**30).extra == ("--qos=x",)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("--nodes=3", "--nodes"), ("-N3", "--nodes"), ("-n 3", "number of ranks"), ("--time 1:00", "--walltime"),
        ("-p x", "--queue"), ("--mem=4G", "--memory"), ("--mem-per-cpu=1G", "--memory"), ("-A x", "--account"),
        ("--job-name=x", "--name"), ("-o x", "Omit this"), ("-a 1-3", "Omit this"), ("--wait", "Omit this"),
        ("--gpus-per-task=1", "--gpus-per-rank"), ("--qos=a -N3", "one option"), ("qos", "one option"),
        ("", "one option"), ("--qos=a\n#SBATCH -N3", "one option"), ("--comment='", "one option"),
    ],
)  # fmt: skip
def test_a_directive_that_contradicts_the_cluster_is_refused_with_what_to_use(line, instead):
    with pytest.raises(InvalidRequest, match=f"extra .*{instead}") as refused:
        settle(extra=(line,))
    assert (refused.value.option, refused.value.given) == ("extra", line)


@pytest.mark.parametrize("directive", ["--mem-per-cpu=2G", "--mem-per-gpu 40G", "--mem=0"])
def test_a_memory_directive_of_the_site_replaces_its_memory_and_only_the_user_replaces_it(tmp_path, directive):
    with settings(**{"memory": "12GB", "job-directives-skip": ["--mem"], "job-extra-directives": [directive]}):
        settled = settle()
        text = Slurm.script(spec_in(tmp_path, resources=settled))
        mine = settle(memory=2**30)
        assert Slurm.notices(settled, None) == []
        assert Slurm.notices(mine, 2**30) == [
            f"not used: {directive} of jobqueue.slurm.job-extra-directives, because --memory is given"
        ]
    assert [line for line in directives(text) if line.startswith("--mem")] == [directive]
    assert mine.extra == ()


@pytest.mark.parametrize("line", ["-t 02:00:00", "-t120", "--time=2:00:00", "--time '0-2'"])
def test_a_walltime_in_a_directive_of_the_site_replaces_the_default(tmp_path, line):
    with settings(**{"job-extra-directives": [line], "job-directives-skip": ["-t"]}):
        settled = settle()
        assert (settled.walltime, settled.extra) == (7200, ())
        assert directives(Slurm.script(spec_in(tmp_path, resources=settled)))[-1] == "-t 02:00:00"
        assert settle(walltime=60).walltime == 60


@pytest.mark.parametrize("section", [{"walltime": "UNLIMITED"}, {"walltime": 0}, {"job-extra": {"-t 0": None}}])
def test_a_job_of_a_site_without_a_time_limit_asks_for_none(tmp_path, section):
    with settings(**section):
        settled = settle()
        text = Slurm.script(spec_in(tmp_path, resources=settled))
        assert Slurm.resolve(settled, ranks=8, threads=1, memory=None) == settled
        assert settle(walltime=60).extra == ()
    assert (settled.walltime, directives(text)[-1]) == (None, "--time=UNLIMITED")


def test_all_memory_of_a_node_is_asked_for_as_slurm_writes_it(tmp_path):
    with settings(**{"job-mem": 0}):
        assert "--mem=0" in directives(Slurm.script(spec_in(tmp_path)))


def test_every_directive_that_is_left_out_is_named_with_the_reason():
    lines = ["--comment='my app' --nodes=1 # as -x", "--qos=a", "-C ib", "-J dask"]
    with settings(**{"job-extra-directives": lines}):
        settled = settle(constraint="gpu")
        reasons = Slurm.notices(settled, None)
    assert settled.extra == ("--qos=a",)
    assert [told.split(" of jobqueue.slurm.job-extra-directives, because ") for told in reasons] == [
        ["not used: --comment='my app'", "the workbench sets --comment"],
        ["not used: --nodes=1", "--nodes of the start sets --nodes"],
        ["not used: -C ib", "--constraint is given"],
        ["not used: -J dask", "--name of the start sets --job-name"],
    ]


def test_a_dry_run_names_the_settings_of_the_site_that_have_no_effect(answers):
    answers("sbatch", "exit 1")
    with settings(**{"job-extra": ["--comment=app"], "partition": "main", "python": "python3"}):
        text = preview(ClusterOptions(2, scheduler="slurm"))
    assert [line for line in text.splitlines() if "jobqueue" in line] == [
        "# not used: --comment=app of jobqueue.slurm.job-extra-directives, because the workbench sets --comment",
        "# jobqueue.slurm.partition is not read",
        "# not used: python of jobqueue.slurm, because the ranks run the Python of this process",
    ]


@pytest.mark.parametrize("line", ["-M other", "--clusters=other", "-a 1-3", "--qos=x --array=1-3", "qos=x", "-p 'a"])
def test_a_directive_of_the_site_that_makes_no_cluster_or_cannot_be_read_is_refused(line):
    with (
        settings(**{"job-extra-directives": [line]}),
        raises(InvalidRequest, option="jobqueue.slurm.job-extra-directives"),
    ):
        settle()


@pytest.mark.parametrize(
    ("skip", "option", "value"),
    [
        ("-p", "queue", "a"),
        ("--mem", "memory", 1),
        ("-t 00:30:00", "walltime", 60),
        ("--gpus-per-task", "gpus_per_rank", 1),
    ],
)
def test_what_the_site_leaves_out_cannot_be_asked_for_and_is_not_made_up(skip, option, value):
    with settings(**{"job-directives-skip": [skip], "queue": "a", "walltime": "01:00:00"}):
        with raises(InvalidRequest, option=option, given=None):
            settle(**{option: value})
        found = settle()
        assert Slurm.resolve(found, ranks=8, threads=1, memory=None) == found
    assert (found.queue is None) is (skip == "-p")
    assert (found.walltime is None) is (skip == "-t 00:30:00")


def test_variables_that_contradict_the_script_are_named(tmp_path):
    names = ["TIMELIMIT", "QOS", "WAIT", "ARRAY_INX", "REQUEUE", "EXCLUSIVE", "ERROR"]
    text = Slurm.script(spec_in(tmp_path))
    given = [*(f"SBATCH_{name}" for name in names), "HOME", "SLURM_CLUSTERS"]
    assert overriding(text, dict.fromkeys(given, "x")) == [
        "SBATCH_ARRAY_INX", "SBATCH_ERROR", "SBATCH_REQUEUE", "SBATCH_TIMELIMIT", "SBATCH_WAIT", "SLURM_CLUSTERS",
    ]  # fmt: skip
    with settings(memory="1 GiB"):
        assert overriding(Slurm.script(spec_in(tmp_path)), {"SBATCH_MEM_PER_CPU": "x"}) == ["SBATCH_MEM_PER_CPU"]


def test_states_and_reasons_are_told_in_words():
    found = parse_queue(jobs(QUEUE))
    assert {job: (status.state.name, status.reason) for job, status in found.items()} == {
        "1": ("RUNNING", ""),
        "2": ("QUEUED", "waiting for resources"),
        "3": ("QUEUED", "requests more time than the partition allows: will never start (PartitionTimeLimit)"),
        "4": ("QUEUED", "a node that the job needs is not available (UnavailableNodes:n[1-2])"),
        "5": (
            "QUEUED",
            "the limit of processors per user of the quality of service is reached (QOSMaxCpuPerUserLimit)",
        ),
        "6": ("QUEUED", "Nodes required for job are DOWN, DRAINED"),
        "7": ("CANCELLED", ""),
        "8": ("TIMEOUT", ""),
        "9": ("FAILED", "a node failed"),
        "10": ("FAILED", "its command ended with an error"),
        "11": ("STARTING", "its nodes are being booted"),
        "12": ("SUSPENDED", "suspended by the scheduler"),
        "13": ("DONE", ""),
        "14": ("COMPLETING", ""),
        "15": ("FAILED", "ended for a job of higher priority"),
        "16": ("UNKNOWN", "Reasonless"),
        "17": ("HELD", "held by the user: scontrol release ends the hold"),
        "18": ("HELD", "was put back into the queue and is held"),
        "19": ("FAILED", "its node has ended it, as after the use of more memory than requested"),
        "20": (
            "FAILED",
            "the job could not be launched: its first node may have no access to the folder of the output",
        ),
    }


def test_every_reason_of_slurm_is_told_in_words():
    codes = (Path(__file__).parents[2] / "data" / "slurm-reasons.txt").read_text(encoding="utf-8").split()
    lines = "".join(f"{number}|PENDING|{code}|N/A|N/A|\n" for number, code in enumerate(codes))
    told = {codes[int(job)]: status.reason for job, status in parse_queue(jobs(lines)).items()}
    assert len(told) > 200
    assert [code for code, reason in told.items() if reason.split("(")[0].strip() in ("", code)] == [
        "None",
        "TimeLimit",
    ]
    assert told["MaxGRESPerAccount"].startswith("the limit of GPUs and other devices per account of the quality of")
    assert told["QOSMaxMemoryPerNode"].startswith("requests more memory per node than the quality of service allows")


def test_underscores_of_a_reason_are_blanks():
    line = "1|PENDING|Nodes_required_for_job_are_DOWN,_DRAINED|N/A|N/A|\n2|EXPEDITING|ReqNodeNotAvail,_x:n1|N/A|N/A|\n"
    found = parse_queue(jobs(line))
    assert found["1"].reason == "Nodes required for job are DOWN, DRAINED"
    assert found["2"].state is JobState.QUEUED


def test_times_are_seconds_since_the_epoch(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        found = parse_queue(jobs(QUEUE))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found["1"] == JobStatus(JobState.RUNNING, start=1795283594.0, end=1795284194.0, nodes="n[1-4]")
    assert (found["7"].start, found["2"].end, found["16"].start) == (None, None, None)


def test_the_accounting_is_believed_when_it_tells_of_an_end():
    text = jobs("1|CANCELLED by 1000|None|2026-11-21T18:53:14|2026-11-21T18:54:14|n1\n2|RUNNING|None|x|Unknown|n1\n")
    assert list(parse_accounting(text)) == ["1"]
    assert parse_accounting(text)["1"].state is JobState.CANCELLED


TIMES = ["2026-11-21T18:53:14", "9999-12-31T23:59:59", "0001-01-01T00:00:00", "Unknown"]
FIELDS = st.text() | st.sampled_from(["RUNNING", "1*", "4+", *TIMES])
LINES = st.lists(FIELDS, min_size=7, max_size=7) | st.lists(FIELDS)


@given(st.lists(LINES.map(SEPARATOR.join)).map("\n".join) | st.text())
def test_whatever_is_answered_no_exception_escapes(text):
    for status in (*parse_queue(text).values(), *parse_accounting(text).values()):
        assert isinstance(status, JobStatus)
    parse_partitions(text)
    expectation(text)
    rejection(error_text(text), spec_in(Path("/a")), {})


@given(st.text(alphabet=st.characters(categories=["Lu", "Nd"])))
def test_a_state_of_another_version_of_slurm_is_no_end(state):
    status = parse_queue(SEPARATOR.join(["1", f"X{state}", *[""] * 6]))["1"]
    assert (status.state, status.finished) == (JobState.UNKNOWN, False)


def test_a_partition_with_a_limit_of_thousands_of_digits_is_read():
    line = bars(f"debug|{'1' * 5000}|4|2|4000|(null)|1")
    assert parse_partitions(line)["debug"].nodes == 4


def test_formats_and_parsers_agree_on_the_number_of_fields():
    assert (QUEUE_FORMAT.count(SEPARATOR), PARTITION_FORMAT.count(SEPARATOR)) == (7, 6)
    assert ACCOUNT_FORMAT.count(",") == 7


POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
NODES = "Node count specification invalid"
REFUSED = "Invalid account or account/partition combination specified"


@pytest.mark.parametrize(
    ("asked", "words", "sentence"),
    [
        ({"queue": "shrot"}, "Invalid partition name specified", "did you mean 'short'?"),
        (
            {"queue": "short", "walltime": 600},
            "Requested time limit is invalid",
            "partition short allows at most 00:05:00",
        ),
        (
            {"nodes": 9},
            "Node count specification invalid",
            "9 nodes cannot be allocated: partition debug has 6 nodes of 8 proc",
        ),
        (
            {"nodes": 2},
            "More processors requested than permitted",
            "8 ranks (2 threads each) on 2 nodes do not fit: part",
        ),
        ({"constraint": "evn"}, "Invalid feature specification", "did you mean 'even'? (allowed: even, fast, odd)"),
        ({"account": "x"}, REFUSED, "--account 'x' may not use partition debug"),
        ({}, REFUSED, "pass your account with --account"),
        ({}, POLICY, "the limits of the account, or of its quality of service, do not allow"),
        (
            {"walltime": 36000},
            f"QOSMaxSubmitJobPerUserLimit; {POLICY}",
            "the limit of submitted jobs per user of the q",
        ),
        ({}, f"AssocMaxWallDurationPerJobLimit; {POLICY}", "requests more walltime than the account allows"),
        ({"extra": ("--qos=no",)}, "Invalid qos specification", "no such quality of service"),
        ({}, "Requested time limit is invalid (missing or exceeds some limit)", "pass --walltime; partition debug"),
        (
            {"gpus_per_rank": 3},
            "Requested node configuration is not available",
            "room for 8 ranks (2 threads, 3 GPUs each): part",
        ),
        ({"extra": ("--foo",)}, "unrecognized option '--foo'", "among ['--foo']"),
        ({"reservation": "r"}, "Requested reservation is invalid", "you cannot use --reservation 'r'"),
        (
            {"nodes": 2, "queue": "short"},
            NODES,
            "2 nodes cannot be allocated: the nodes of a job in partition short are limited to 1",
        ),
        ({"nodes": 1, "queue": "wide"}, NODES, "the nodes of a job in partition wide are limited to 2-4"),
        ({"nodes": 9}, NODES, "9 nodes cannot be allocated: partition debug has 6 nodes"),
        ({}, "the moon is full", "Slurm gives this reason"),
    ],
)
def test_a_rejection_names_what_was_asked_for_and_what_there_is(asked, words, sentence):
    partitions = parse_partitions(bars(PARTITIONS))
    assert sentence in rejection(words, spec_in(Path("/a"), resources=Resources(**asked)), partitions)


def test_a_long_rejection_keeps_its_end_and_loses_its_banner():
    banner = "-----\nWelcome\n=====\nWelcome\n"
    assert error_text(f"{banner}sbatch: error: 17\nsbatch: error: Batch job submission failed: no") == "Welcome; 17; no"
    long = error_text(f"{banner * 9}{'checks ' * 99}\n--> Error: at most 16 nodes\n")
    assert (long[:4], long[-29:], len(long)) == ("... ", "; --> Error: at most 16 nodes", 504)


def test_what_is_expected_is_told_with_the_day_unless_it_is_today():
    words = "sbatch: Job 1 to start at 2026-11-21T10:32:00 using 8 processors on nodes n[1-4] in partition debug"
    noon = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
    assert expectation(words, noon) == "would start at 10:32 on n[1-4], using 8 processors"
    assert expectation(words, noon - 86400) == "would start at 2026-11-21 10:32 on n[1-4], using 8 processors"
    assert expectation(words.replace("2026", "3047"), noon).startswith("would not start in the present state: Job 1")
    assert expectation("sbatch: who knows") == "who knows"


def test_a_job_is_submitted_with_a_private_script_and_its_id_is_on_disk(tmp_path, answers, monkeypatch):
    answers("sbatch", 'test "$1" = --parsable && env > env && echo "42;cluster"')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    spec = spec_in(tmp_path)
    assert Slurm.submit(spec) == "42"
    assert stat.S_IMODE(spec.script.stat().st_mode) == 0o700
    assert spec.script.read_text() == Slurm.script(spec)
    assert Slurm.receipt(spec.receipt.read_text()) == "42"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert not {"SLURM_JOB_ID", "SBATCH_TIMELIMIT"} & names
    assert "SBATCH_TIMELIMIT, SLURM_JOB_ID" in spec.log.read_text()


def test_a_refused_job_is_told_in_a_sentence_with_the_words_of_slurm(tmp_path, answers):
    answers("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1")
    answers("sinfo", f"cat <<'.'\n{bars(PARTITIONS)}.")
    spec = spec_in(tmp_path, resources=Resources(queue="debgu"))
    with pytest.raises(JobRejected):
        Slurm.submit(spec)
    assert "did you mean 'debug'" in Slurm.test_only(spec)


def test_a_judge_that_does_not_answer_is_told_and_is_no_error(tmp_path, answers):
    answers("sbatch", "exec sleep 60")
    with dask.config.set({"workbench.scheduler-timeout": "200 ms"}):
        assert "did not answer within 0.2 s" in Slurm.test_only(spec_in(tmp_path))


def test_a_submission_that_was_said_to_have_failed_leaves_no_job(tmp_path, answers):
    answers("sbatch", "echo 42; exit 1")
    answers("sinfo", "exit 1")
    answers("scancel", f"echo $1 > {tmp_path}/cancelled")
    with pytest.raises(JobRejected):
        Slurm.submit(spec_in(tmp_path))
    assert (tmp_path / "cancelled").read_text() == "42\n"


def test_a_submission_that_takes_too_long_leaves_no_job(tmp_path, answers, monkeypatch):
    monkeypatch.setattr("workbench.launch.command.submit_timeout", lambda: 0.5)
    answers("sbatch", "echo 42; exec sleep 60")
    answers("scancel", f"echo $1 > {tmp_path}/cancelled")
    with pytest.raises(SchedulerTimeout):
        Slurm.submit(spec_in(tmp_path))
    assert (tmp_path / "cancelled").read_text() == "42\n"


def test_a_full_disk_is_told_and_nothing_is_submitted(tmp_path, answers):
    answers("sbatch", f"touch {tmp_path}/submitted")
    with pytest.raises(LaunchError):
        Slurm.submit(dataclasses.replace(spec_in(tmp_path), script=Path("/dev/full")))
    assert not (tmp_path / "submitted").exists()


def test_the_status_of_all_jobs_takes_one_question(tmp_path, answers):
    answers("squeue", f"echo $* >> {tmp_path}/asked; cat <<'.'\n{jobs(QUEUE)}.")
    found = Slurm.statuses(["1", "2", "../x", "1"])
    assert re.findall(r"--jobs=(\S+)\n", (tmp_path / "asked").read_text()) == ["1,2"]
    assert (found["1"].state, found["2"].state, found["../x"]) == (JobState.RUNNING, JobState.QUEUED, UNKNOWN)


def test_a_task_of_a_job_array_is_found_by_the_number_in_its_variables(answers):
    fields = "s/%i/100_3/; s/%A/103/; s/%T/RUNNING/; s/%e/2026-11-21T19:03:14/"
    answers("squeue", f'for word; do case $word in --format=*) echo "${{word#*=}}" | sed "{fields}";; esac; done')
    status = Slurm.statuses(["103"])["103"]
    assert (status.state, status.end is None) == (JobState.RUNNING, False)


def test_filters_that_the_user_has_set_for_the_queue_hide_no_job(answers, monkeypatch):
    monkeypatch.setenv("SQUEUE_USERS", "nobody")
    answers("squeue", f'test -z "$SQUEUE_USERS" && cat <<.\n{jobs(QUEUE)}.')
    assert Slurm.statuses(["1"])["1"].state is JobState.RUNNING


def test_the_second_of_the_two_hours_at_the_end_of_summer_time_is_not_the_first(answers, monkeypatch):
    first = 1792888200  # 2026-10-25 02:30 in Berlin, and again one hour later
    line = SEPARATOR.join(["{job}", "RUNNING", "None", "N/A", "$(date -d @{end} +$format)", "n1", "mpi", "(null)"])
    lines = "".join(f"\n{line.format(job=job, end=first + 3600 * (job - 1))}" for job in (1, 2))
    answers("squeue", f'format=$SLURM_TIME_FORMAT; test "$format" != standard || format=%FT%T; cat <<.{lines}\n.')
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        found = Slurm.statuses(["1", "2"])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [found[job].end for job in ("1", "2")] == [first, first + 3600]


GONE = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def test_a_job_that_slurm_does_not_know_is_forgotten_and_not_said_to_have_ended_well(answers):
    answers("squeue", GONE)
    status = Slurm.statuses(["99"])["99"]
    assert (status.state, status.unknown_to_scheduler, status.finished) == (JobState.UNKNOWN, True, True)


def test_a_job_that_the_queue_has_forgotten_is_looked_up_in_the_accounting(answers):
    answers("squeue", GONE)
    answers("sacct", f"echo '{jobs('99|TIMEOUT|None|2026-11-21T18:53:14|2026-11-21T18:54:14|n1')}'")
    assert Slurm.statuses(["99"])["99"].state is JobState.TIMEOUT


@pytest.mark.parametrize(
    "body",
    [
        "exit 1",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        "head -c 5000 /dev/urandom",
        "exec sleep 600",
        f"echo '99{SEPARATOR}RUNNING'",
    ],
)
def test_what_cannot_be_told_is_unknown_and_comes_in_time(answers, body):
    answers("squeue", body)
    begin = time.monotonic()
    with dask.config.set({"workbench.scheduler-timeout": "1 s"}):
        told = Slurm.statuses(["99", "100"])
    assert {(status.state, status.finished) for status in told.values()} == {(JobState.UNKNOWN, False)}
    silent = "Unable" in body or "sleep" in body
    assert {status.reason.startswith("Slurm does not answer (") for status in told.values()} == {silent}
    assert time.monotonic() - begin < 100


@pytest.mark.parametrize("words", ["Invalid job id specified", "Job/step already completing or completed"])
def test_to_cancel_a_job_that_has_ended_is_no_error(answers, words):
    answers("scancel", f"echo 'scancel: error: Kill job error on job id 99: {words}' >&2; exit 1")
    Slurm.cancel("99")


@pytest.mark.parametrize(
    ("words", "error"),
    [("Access/permission denied", LaunchError), ("Unable to contact slurm controller", SchedulerTimeout)],
)
def test_a_job_that_could_not_be_cancelled_is_an_error(answers, words, error):
    answers("scancel", f"echo 'scancel: error: {words}' >&2; exit 1")
    with raises(error, kind=error.__name__):
        Slurm.cancel("99")


def test_slurm_is_there_when_it_answers(answers, monkeypatch, tmp_path):
    answers("sbatch", "")
    answers("sinfo", "echo debug")
    assert available()
    answers("sinfo", "exit 1")
    assert not available()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not available()


@pytest.mark.parametrize(
    "line", ["--outp=/dev/null", "--nod=9", "--ntasks-per-n=1", "--tim=1", "--part=x", "--job-n=x"]
)
def test_a_shortened_option_of_ours_is_refused_as_the_whole_one(line):
    with raises(InvalidRequest, option="extra", given=line):
        Slurm.resolve(Resources(extra=(line,)), ranks=1, threads=1, memory=None)
