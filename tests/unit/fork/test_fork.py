"""A rank that is forked for a stub is what it would have been, and ends with it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.processes import DEADLINE, gone, until

from workbench.host import node_dirs, parent_death, stub
from workbench.host.processes import exit_code

MODULES = "support.forked"


class Node:
    """One node of a cluster that is not there."""

    def __init__(self, folder: Path) -> None:
        self.id, self.log = uuid.uuid4().hex, folder / "log"

    def words(self, *deed, modules=MODULES):
        """Return the command of a stub."""
        program = ("support.forked", "name", self.id, *deed)
        return [sys.executable, "-I", "-S", stub.__file__, str(self.log), modules, *program]

    def run(self, *deed, **options):
        """Return what a stub has printed and how it has ended."""
        modules = options.pop("modules", MODULES)
        return subprocess.run(
            self.words(*deed, modules=modules), capture_output=True, text=True, timeout=DEADLINE, check=False, **options
        )

    @contextmanager
    def started(self, *deed, **options):
        """Give a stub that runs, and what its rank has printed first."""
        process = subprocess.Popen(
            self.words(*deed, modules=options.pop("modules", MODULES)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()
            process.communicate()

    @property
    def folder(self):
        return Path(stub.sockets_folder(self.id, stub.node()))


@pytest.fixture
def node(tmp_path, monkeypatch):
    node = Node(tmp_path)
    monkeypatch.setenv(stub.CLUSTER, node.id)
    yield node
    until("the template to end", lambda: not (node.folder / stub.SOCKET).exists())
    node_dirs.remove(node.id)


def plain(node, *deed, **options):
    """Return the output of the program without a fork."""
    words = [sys.executable, "-P", "-m", *node.words(*deed)[6:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=True, **options)
    return json.loads(done.stdout)


def alike():
    """Have this process be unlike others, so that a child has something to hand over."""
    os.umask(0o027)
    os.nice(3)
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


def test_a_rank_is_what_it_would_be_without_the_template(node, tmp_path):
    given = os.open(os.devnull, os.O_RDONLY)
    with node.started("wait"):
        # The template has been started by another stub, in other surroundings.
        options = {
            "cwd": tmp_path,
            "env": os.environ | {"VARIABLE": "x"},
            "preexec_fn": alike,
            "pass_fds": [given],
        }
        expected = plain(node, "tell", "a b", "", **options)
        done = node.run("tell", "a b", "", **options)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["forked"]
    assert not expected["forked"]
    assert told["facts"] == expected["facts"]
    assert told["facts"]["files"] == [200, 300]
    assert given in told["facts"]["given"]
    os.close(given)


def test_ranks_of_a_node_have_one_template_and_draw_numbers_of_their_own(node):
    with node.started("draw") as (_, one), node.started("draw") as (_, other):
        assert one["forked"]
        assert one["parent"] == other["parent"]
        assert all(its != others for its, others in zip(one["drawn"], other["drawn"], strict=True))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_libraries_have_the_threads_that_the_rank_is_given(node, threads):
    env = os.environ | dict.fromkeys(stub.ONE_THREAD, threads)
    done = node.run("count", modules="numpy,support.forked", env=env)
    told = json.loads(done.stdout)
    assert told["forked"]
    assert set(told["threads"]) == {int(threads)}


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        (("exit", "0"), 0),
        (("exit", "3"), 3),
        (("raise", "5"), 5),
        (("reason", "no license"), 1),
        (("signal", "9"), -9),
        (("signal", "11"), -11),
        (("signal", "15"), -15),
    ],
)
def test_a_stub_ends_as_its_rank_ends(node, deed, code):
    assert node.run("end", *deed).returncode == code


def test_a_head_can_read_how_a_rank_has_ended_after_its_stub_has_ended(node):
    # The template ends after its last rank.
    with node.started("wait"), node.started("wait") as (process, told):
        os.kill(told["pid"], signal.SIGKILL)
        assert process.wait(DEADLINE) == -signal.SIGKILL
        assert exit_code(told["pid"]) == -signal.SIGKILL


def test_signals_are_passed_on(node):
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")

    def heed():
        for name in names:  # whatever has started the tests may ignore some
            signal.signal(signal.Signals[name], signal.SIG_DFL)

    with node.started("catch", *names, preexec_fn=heed) as (process, told):
        assert told["pid"] != process.pid
        for name in names:
            process.send_signal(signal.Signals[name])
            assert json.loads(process.stdout.readline()) == name
        assert process.wait(DEADLINE) == 0


def test_a_stub_that_is_killed_takes_its_rank_along_which_is_stuck_and_what_that_has_started(node):
    with node.started("stick") as (process, told):
        process.kill()
        for pid in (told["pid"], told["child"]):
            until(f"the end of {pid}", lambda pid=pid: _ended(pid))


PARENT = """
import subprocess, sys
subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdin.read()
"""


def test_a_stub_ends_with_its_parent(node):
    words = [sys.executable, "-c", PARENT, *node.words("stick")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        told = json.loads(parent.stdout.readline())
        parent.kill()
    until("the end of the rank", lambda: _ended(told["pid"]))
    until("the end of its child", lambda: _ended(told["child"]))


ALONE = """
import os, socket, subprocess
from workbench.host import stub
parent = subprocess.Popen(["true"])
parent.wait()
(connection, template), (life, rank) = socket.socketpair(), socket.socketpair()
stub._wait_for_rank(connection, life, os.getpid(), parent.pid)
"""


def test_a_stub_whose_parent_has_ended_before_the_rank_was_there_ends_too():
    done = subprocess.run([sys.executable, "-c", ALONE], timeout=DEADLINE, check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_template_that_is_killed_takes_no_rank_along(node):
    with node.started("catch", "SIGUSR1") as (process, told):
        os.kill(psutil.Process(told["pid"]).ppid(), signal.SIGKILL)
        # Another template is started for those who come later.
        with node.started("wait") as (_, later):
            assert later["forked"]
            process.send_signal(signal.SIGUSR1)
            assert json.loads(process.stdout.readline()) == "SIGUSR1"
            assert process.wait(DEADLINE) == -signal.SIGKILL, "nobody knows the code"
    until("the end of the rank", lambda: _ended(told["pid"]))


def test_the_end_of_a_rank_is_seen_though_its_template_is_gone_and_processes_of_the_rank_are_there(node):
    with node.started("leave") as (process, told):
        os.kill(told["parent"], signal.SIGKILL)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(DEADLINE) == -signal.SIGKILL
    (node.folder / stub.SOCKET).unlink()
    until("the end of what the rank has forked", lambda: _ended(told["child"]))


def test_a_template_that_does_not_answer_is_not_waited_for_longer_than_half_of_the_time_of_a_start(node):
    with node.started("wait") as (_, told):
        os.kill(told["parent"], signal.SIGSTOP)
        with node.started("wait", "--timeout", "2") as (process, later):
            assert not later["forked"]
            assert "the template has not answered for 1 s" in process.stderr.readline()
            os.kill(told["parent"], signal.SIGCONT)


def test_a_template_keeps_no_files_of_stubs_that_have_not_sent_all(node):
    with node.started("wait") as (_, told):
        folder = Path(f"/proc/{told['parent']}/fd")
        before = len([*folder.iterdir()])
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(node.folder / stub.SOCKET))
                socket.send_fds(connection, [(100).to_bytes(8, "big")], [0, 1, 2])
        until("the template to close them", lambda: len([*folder.iterdir()]) == before)


def test_a_rank_that_crashes_prints_where_if_its_interpreter_was_to_do_so(node):
    done = node.run("end", "signal", "11", env=os.environ | {"PYTHONFAULTHANDLER": "1"})
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_module_that_has_changed_is_imported_anew(node, tmp_path):
    module = tmp_path / "changing.py"
    module.touch()
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    with node.started("wait", modules=f"{MODULES},changing", env=env) as (_, told):
        assert told["forked"]
        os.utime(module, (0, 0))
        done = node.run("tell", env=env)
    assert not json.loads(done.stdout)["forked"]
    assert "changing has changed since the template imported it" in done.stderr


def test_a_module_that_draws_numbers_is_named(node, tmp_path):
    (tmp_path / "drawing.py").write_text("import numpy as np\n\nnumbers = np.random.default_rng()\n")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    done = node.run("tell", modules=f"{MODULES},drawing", env=env)
    assert not json.loads(done.stdout)["forked"]
    assert "drawing.numbers would draw the same random numbers on all ranks" in done.stderr


@pytest.mark.parametrize("before", [None, "x"], ids=["added", "changed"])
def test_variables_that_an_import_sets_stay_unless_the_stub_has_its_own(before, node, tmp_path):
    (tmp_path / "setting.py").write_text("import os\n\nos.environ['VARIABLE'] = os.environ.get('VARIABLE', '') + 'y'\n")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    env |= {"VARIABLE": before} if before else {}
    modules = f"{MODULES},setting"
    with node.started("wait", modules=modules, env=env):
        told, other = (
            json.loads(node.run("tell", modules=modules, env=env | own).stdout) for own in ({}, {"VARIABLE": "own"})
        )
    assert told["forked"]
    assert told["facts"]["variable"] == f"{before or ''}y"
    assert told["facts"]["for C"]
    assert other["forked"]
    assert other["facts"]["variable"] == "own"


def test_a_template_ends_after_its_last_rank(node):
    with node.started("wait") as (_, told):
        template = psutil.Process(told["parent"])
        assert "workbench.fork" in template.cmdline()
    until("the end of the template", lambda: gone(template))
    assert not (node.folder / stub.SOCKET).exists()


def test_a_rank_that_cannot_be_forked_starts_all_the_same(node):
    with node.started("wait"):
        done = node.run("tell", env=os.environ | {"PYTHONHASHSEED": "1"})
    assert not json.loads(done.stdout)["forked"]
    assert done.stderr == (
        "workbench: a rank starts without the template of its node: the template has another variables that are read "
        "at the start\n"
    )


def test_a_rank_in_another_control_group_starts_without_the_template(node, control_group):
    with node.started("wait"):
        done = node.run("tell", preexec_fn=lambda: control_group.write_text(f"{os.getpid()}"))
    assert not json.loads(done.stdout)["forked"]
    assert "the template has another control group" in done.stderr


@pytest.fixture
def control_group():
    above = next(its for its in map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")) if (its / "cgroup.procs").exists())
    folder = above / f"wbtest-{os.getpid()}"
    if not os.access(above, os.W_OK):
        pytest.skip(f"{above} cannot be written: it takes root")
    folder.mkdir()
    yield folder / "cgroup.procs"
    until("the group to be empty", lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_a_rank_of_slurm_with_a_control_group_of_its_own_is_not_forked(monkeypatch, node):
    monkeypatch.setattr(stub, "_read", lambda _: "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_3\n")
    with pytest.raises(stub.Refused, match="each rank has a separate control group here"):
        stub._request_fork({}, "/nowhere", "")


def test_what_differs_is_named():
    here = stub.surroundings()
    assert stub.difference(here, here) == ""
    for what in set(here) - {"folders of libraries"}:
        assert stub.difference({**here, what: "other"}, here) == f"the template has another {what}"


GUARDED = """
import json
from workbench.host import stub
print(json.dumps([stub._read("/proc/self/status"), stub.surroundings()["privileges"]]))
"""


def test_a_guard_is_no_difference():
    run = [sys.executable, parent_death.__file__, "--guard", "", str(os.getpid()), "/nowhere/folder"]
    done = subprocess.run([*run, sys.executable, "-c", GUARDED], capture_output=True, text=True, check=True)
    status, privileges = json.loads(done.stdout)
    assert "Seccomp:\t2" in status
    assert privileges == stub.surroundings()["privileges"]


def test_a_variable_alone_is_none_either(monkeypatch):
    here = stub.surroundings()["privileges"]
    monkeypatch.setenv("WORKBENCH_GUARD", "1:2")
    assert stub.surroundings()["privileges"] == here


def test_a_launcher_may_put_folders_of_libraries_in_front_and_take_none_away():
    one, both = ({**stub.surroundings(), "folders of libraries": folders} for folders in ([b"/a"], [b"/a", b"/b"]))
    assert stub.difference(both, one) == ""
    assert stub.difference(one, both) == "the template has another folders of libraries"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("support.starts_thread", "the import of support.starts_thread starts threads"),
        ("support.no_such", "the import of support.no_such failed: ModuleNotFoundError"),
    ],
)
def test_modules_that_keep_a_template_from_forking_are_named(node, module, why):
    done = node.run("tell", modules=f"support.forked,{module}")
    assert not json.loads(done.stdout)["forked"]
    assert why in done.stderr


def test_a_template_with_pandas_and_pyarrow_forks(node):
    done = node.run("tell", modules="pyarrow,pandas,support.forked")
    assert json.loads(done.stdout)["forked"], done.stderr


def test_another_user_is_not_served_even_if_the_folder_is_open(node):
    if os.geteuid() != 0:
        pytest.skip("it takes root to be another user")
    with node.started("wait") as (_, told):
        node.folder.chmod(0o777)
        (node.folder / stub.SOCKET).chmod(0o777)
        # The folders above are closed to others as well.
        folder = os.open(node.folder, os.O_RDONLY)
        reading, writing = os.pipe()
        if not (child := os.fork()):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(f"/proc/self/fd/{folder}/{stub.SOCKET}")
                os.write(writing, b"connected, and answered " + (connection.recv(100) or b"nothing"))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"connected, and answered nothing"
        assert len(psutil.Process(told["parent"]).children()) == 1
        for number in (folder, reading, writing):
            os.close(number)


def _ended(pid: int) -> bool:
    try:
        return gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def test_the_names_of_folders_need_no_module_of_hashes_that_builds_for_fips_lack():
    modules = ["_blake2", "_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha3", "_sha512"]
    program = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({modules})); "
        "print(runpy.run_path(sys.argv[1])['folder_name']('0123456789abcdef', 'data', 'a'))"
    )
    line = [sys.executable, "-I", "-S", "-c", program, stub.__file__]
    done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.strip() == stub.folder_name("0123456789abcdef", "data", "a")
