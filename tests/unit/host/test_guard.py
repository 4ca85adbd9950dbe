"""A guarded launcher accepts connections only of its user."""

from __future__ import annotations

import ast
import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from support.patience import DEADLINE
from support.processes import until
from support.users import NOBODY, connected

from workbench.host import guard, parent_death, processes

# A launcher: it listens, prints its port, and sends each peer the address that `accept` has returned for it.
LISTENS = """
import select, socket, sys
address, blocking = sys.argv[1], sys.argv[2] != "non-blocking"
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listening = socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::", backlog=200)
listening.setblocking(blocking)
print(listening.getsockname()[1], flush=True)
left = {"once": 1, "twice": 2}.get(sys.argv[2], -1)
while left:
    if not blocking:
        select.select([listening], [], [])
    try:
        connection, peer = listening.accept()
    except BlockingIOError:
        print("no peer", flush=True)
        continue
    assert connection.get_inheritable() is False
    assert connection.getblocking()
    with connection:
        connection.sendall(repr(peer).encode())
    left -= 1
"""
# The same by a thread, as PMIx does it.
IN_A_THREAD = f"import threading; threading.Thread(target=exec, args=({LISTENS!r},)).start()"
# The same while signals interrupt each call again and again.
INTERRUPTED = (
    "import signal; signal.signal(signal.SIGALRM, lambda *_: None); "
    "signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)\n" + LISTENS
)
# A launcher like Hydra: it polls all its sockets together, and accepts when there is a connection.
POLLS = """
import select, socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
served = [listening, sys.stdin]
while True:
    for ready in select.select(served, [], [])[0]:
        if ready is listening:
            served.append(listening.accept()[0])
            served[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif ready is sys.stdin:
            sys.exit(sys.stdin.read())
        else:
            ready.sendall(ready.recv(5))
"""
UNIX = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print(0, flush=True)
listening.accept()[0].sendall(b"hello")
"""


def tied(*command, hosts="", **options):
    """Start a command under a tether with a guard."""
    line = [
        sys.executable,
        "-I",
        "-S",
        parent_death.__file__,
        "--guard",
        hosts,
        str(os.getpid()),
        "/nowhere/folder",
        *command,
    ]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@contextmanager
def started(*command, **options):
    """Run a guarded command; yield its process and the port that it prints."""
    with tied(*command, **options) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def listening(address="127.0.0.1", mode="blocking", program=LISTENS, **options):
    with started(sys.executable, "-I", "-S", "-c", program, address, mode, **options) as (process, port):
        yield process, (address, port)


def told(connection):
    """Return all that the other end sends; a connection that is reset has sent nothing."""
    with connection:
        try:
            return connection.makefile("rb").read().decode()
        except ConnectionResetError:
            return ""


@pytest.mark.parametrize("mode", ["blocking", "non-blocking"])
@pytest.mark.parametrize("program", [LISTENS, IN_A_THREAD], ids=["in the main thread", "in another thread"])
def test_the_user_s_own_connection_is_accepted_with_its_address_and_another_user_s_is_not(mode, program):
    with listening(mode=mode, program=program) as (process, address):
        for _ in range(2):
            own = connected(address, DEADLINE)
            assert ast.literal_eval((name := own.getsockname(), told(own))[1]) == name
            assert told(connected(address, DEADLINE, nobody=True)) == ""
        process.terminate()
        output, errors = process.communicate(timeout=DEADLINE)
    assert set(output.split("\n")) == {"" if mode == "blocking" else "no peer", ""}
    # One line per minute.
    (line,) = errors.splitlines()
    assert f"refused a connection from 127.0.0.1 to port {address[1]} of the MPI launcher" in line
    assert "workbench.mpi.guard" in line


@pytest.mark.parametrize(("address", "to"), [("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")])
def test_ipv6_is_guarded_as_well_and_so_is_ipv4_on_its_ports(address, to):
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this host has no IPv6")
    with listening(address) as (_, (_, port)):
        own = connected((to, port), DEADLINE)
        name = own.getsockname()
        assert ast.literal_eval(told(own)) == (name if ":" in to else (f"::ffff:{to}", name[1], 0, 0))
        assert told(connected((to, port), DEADLINE, nobody=True)) == ""


def test_of_many_connections_those_of_the_user_are_all_accepted():
    with listening(mode="non-blocking") as (_, address), ExitStack() as opened:
        connections = [connected(address, DEADLINE, nobody=number % 3 == 0) for number in range(90)]
        for connection in connections:
            opened.enter_context(connection)
        assert [number for number, each in enumerate(connections) if not told(each)] == list(range(0, 90, 3))


@pytest.mark.parametrize("mode", ["blocking", "non-blocking"])
def test_no_connection_is_lost_while_signals_interrupt_accept(mode):
    with listening(mode=mode, program=INTERRUPTED) as (_, address):
        for _ in range(30):
            own = connected(address, DEADLINE)
            assert ast.literal_eval((name := own.getsockname(), told(own))[1]) == name


def test_a_stranger_does_not_hold_up_a_launcher_that_polls_before_it_waits_in_accept():
    with started(sys.executable, "-I", "-S", "-c", POLLS, stdin=subprocess.PIPE) as (process, port):
        for _ in range(3):
            assert told(connected(("127.0.0.1", port), DEADLINE, nobody=True)) == ""
        _, errors = process.communicate("goes on", timeout=DEADLINE)
    assert errors.endswith("goes on\n")


def test_a_peer_is_refused_if_the_kernel_does_not_answer(monkeypatch):
    def fails(*_):
        raise TimeoutError

    listens, own = loopback()
    with listens, own, listens.accept()[0] as accepted:
        assert guard.is_allowed(accepted, own.getsockname(), os.geteuid(), "")
        monkeypatch.setattr(guard, "owner", fails)
        assert not guard.is_allowed(accepted, own.getsockname(), os.geteuid(), "")


SHELL = ["/bin/sh", "-c", '"$@" & trap "kill $!" TERM; wait', "sh"]


def test_whatever_the_launcher_starts_is_guarded_by_any_name(tmp_path):
    (wrapper := tmp_path / "orterun_wrapper").symlink_to(sys.executable)
    for command in ([*SHELL, sys.executable], [str(wrapper)]):
        with started(*command, "-c", LISTENS, "127.0.0.1", "blocking") as (_, port):
            assert told(connected(("127.0.0.1", port), DEADLINE, nobody=True)) == ""
            assert told(connected(("127.0.0.1", port), DEADLINE))


@pytest.mark.parametrize("program", ["rank", "stub", "started by a rank", "srun"])
def test_ranks_what_becomes_one_what_they_start_and_srun_accept_by_themselves(program, tmp_path):
    package = tmp_path / "workbench"
    for path in (package / "rank.py", package / "host" / "stub.py"):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(LISTENS)
    (package / "__init__.py").touch()
    command = {
        "rank": [sys.executable, "-P", "-m", "workbench.rank"],
        "stub": [sys.executable, "-I", "-S", package / "host" / "stub.py"],
        "started by a rank": ["env", f"{guard.VARIABLE}={guard.OF_RANK}", sys.executable, "-c", LISTENS],
        "srun": [tmp_path / "srun", "-c", LISTENS],
    }[program]
    shutil.copy(Path(sys.executable).resolve(), tmp_path / "srun")
    env = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONHOME": sys.base_prefix}
    with started(*SHELL, *command, "127.0.0.1", "once", env=env) as (_, port):
        assert told(connected(("127.0.0.1", port), DEADLINE, nobody=True))


@pytest.mark.parametrize("module", [True, False], ids=["a module", "under another program"])
def test_a_rank_stays_one_whatever_its_command_line_becomes(module, tmp_path):
    package = tmp_path / "workbench"
    package.mkdir()
    (package / "__init__.py").touch()
    load = f"import sys; sys.path.insert(0, {str(Path(guard.__file__).parent)!r}); import guard\n"
    program = load + LISTENS.replace("    left -= 1", "    left -= 1; guard._rename(b'title')")
    (package / "rank.py").write_text(program)
    command = ["-P", "-m", "workbench.rank"] if module else ["-c", program.replace("\n", "; guard.declare_rank()\n", 1)]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with started(*SHELL, sys.executable, *command, "127.0.0.1", "blocking", env=env) as (_, port):
        for _ in range(2):
            assert told(connected(("127.0.0.1", port), DEADLINE, nobody=True))


def test_a_unix_socket_is_not_the_guard_s_concern(tmp_path):
    path = str(tmp_path / "socket")
    with started(sys.executable, "-c", UNIX, path), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE)
        connection.connect(path)
        assert connection.recv(5) == b"hello"


@pytest.mark.parametrize("victim", ["tether", "launcher"])
def test_nothing_is_left_when_one_is_killed_while_the_launcher_waits_in_accept(victim):
    with listening() as (process, address):
        launcher = psutil.Process(process.pid).children()[0].pid
        os.kill({"tether": process.pid, "launcher": launcher}[victim], 9)
        assert process.wait(DEADLINE) == -9
        until("the launcher has ended", lambda: processes.start_time(launcher) is None)
        with pytest.raises(ConnectionRefusedError):
            connected(address, DEADLINE)


# It prints the port of a program that outlives it, as srun outlives prterun.
OUTLIVED = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    sys.argv[1:] = ["127.0.0.1", "twice"]
    exec({LISTENS!r})
    os._exit(0)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_outlives_the_tether_accepts_as_before(number):
    shell = ["/bin/sh", "-c", 'exec "$@"', "sh"]
    with started(*shell, sys.executable, "-c", OUTLIVED, stdin=subprocess.PIPE) as (process, port):
        process.send_signal(number)
        assert process.wait(DEADLINE) == -number
        assert all(told(connected(("127.0.0.1", port), DEADLINE)) for _ in range(2))
        # The guard, which has the other end, has ended with the last of its processes.
        assert process.stderr.read() == ""


def test_a_launcher_that_is_under_another_guard_already_starts_with_a_warning():
    inner = [sys.executable, "-I", "-S", parent_death.__file__, "--guard", ""]
    # The parent of the inner tether is the outer one's child: a shell that becomes it.
    run = f'exec "$@" $PPID /nowhere/folder {sys.executable} -c "print(7)"'
    with started("/bin/sh", "-c", run, "sh", *inner) as (process, printed):
        _, errors = process.communicate(timeout=DEADLINE)
    assert printed == 7
    assert process.returncode == 0
    assert "cannot be guarded here: [Errno 16] seccomp: Device or resource busy (setting workbench.mpi.guard)" in errors


def test_where_no_user_has_a_number_a_launcher_starts_with_a_warning():
    apart = ["unshare", "--user"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be made here")
    line = [
        *apart,
        sys.executable,
        "-I",
        "-S",
        parent_death.__file__,
        "--guard",
        "",
        str(os.getpid()),
        "/nowhere",
        "true",
    ]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ended.returncode == 0
    assert "cannot be guarded here" in ended.stderr
    assert "users of this host have no numbers in this user namespace" in ended.stderr


def test_a_launcher_whose_guard_fails_for_a_reason_that_is_not_the_kernel_s_is_not_started():
    few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))}
    with tied(sys.executable, "-c", "print('started')", **few) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert output == ""
    assert "Too many open files. Repair the cause, or set workbench.mpi.guard to false" in errors


@pytest.mark.parametrize("number", [errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.EAGAIN])
def test_what_other_users_can_cause_is_no_lack_of_the_kernel(number):
    assert not guard.lacks(OSError(number, os.strerror(number)))


def loopback(family=socket.AF_INET):
    listens = socket.create_server(("127.0.0.1" if family == socket.AF_INET else "::1", 0), family=family)
    return listens, socket.create_connection(listens.getsockname()[:2], DEADLINE)


def test_the_kernel_reports_whose_a_connection_is():
    listens, own = loopback()
    with listens, own:
        assert guard.owner(own.getsockname(), own.getpeername()) == os.geteuid()
        with connected(listens.getsockname(), DEADLINE, nobody=True) as other:
            assert guard.owner(other.getsockname(), other.getpeername()) == NOBODY


def test_neither_a_socket_that_listens_nor_one_that_was_closed_vouches_for_a_peer():
    listens, own = loopback()
    with listens:
        accepted, peer = listens.accept()
        with accepted, socket.socket() as other:
            # It listens where the peer would be, and the kernel returns it for want of a connection.
            assert guard.owner(listens.getsockname(), ("127.0.0.1", 1)) is None
            other.bind(("127.0.0.1", 0))
            assert guard.owner(other.getsockname(), listens.getsockname()) is None
        own.shutdown(socket.SHUT_WR)
        assert guard.owner(peer, listens.getsockname()) is None
        own.close()
        assert guard.owner(peer, listens.getsockname()) is None


def test_an_address_of_another_host_has_no_owner_here():
    assert guard.owner(("192.0.2.77", 4000), ("127.0.0.1", 4001)) is None
    assert guard.owner(("fe80::77", 4000, 0, 1), ("fe80::78", 4001, 0, 1)) is None


def test_a_launcher_that_cannot_name_its_addresses_is_not_started(tmp_path):
    with tied(sys.executable, "-c", "print('started')", hosts=str(tmp_path / "missing")) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (1, "")
    assert "missing" in errors
    assert "set workbench.mpi.guard to false" in errors


def test_peers_of_other_hosts_are_those_whose_addresses_the_hosts_of_the_world_have_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as connection:

        def is_allowed(*peer, hosts=str(tmp_path)):
            return guard.is_allowed(connection, peer, os.geteuid(), hosts)

        assert not is_allowed("192.0.2.77", 4000)
        (tmp_path / "192.0.2.77").touch()
        assert is_allowed("192.0.2.77", 4000)
        assert is_allowed("::ffff:192.0.2.77", 4000, 0, 0)
        assert not is_allowed("192.0.2.78", 4000)
        assert not is_allowed("192.0.2.77", 4000, hosts="")


def test_an_address_of_this_host_is_not_another_host_s_although_it_is_named(tmp_path):
    guard.publish(str(tmp_path))
    (tmp_path / "127.0.0.1").touch()
    with socket.create_server(("127.0.0.1", 0)) as connection:
        for path in tmp_path.iterdir():
            assert not guard.is_allowed(connection, (path.name, 1), os.geteuid(), str(tmp_path))


def test_a_launcher_on_several_hosts_names_their_addresses_and_accepts_its_user(tmp_path):
    with listening(hosts=str(tmp_path)) as (_, address):
        assert told(connected(address, DEADLINE))
        assert told(connected(address, DEADLINE, nobody=True)) == ""
    entries = [entry for its in psutil.net_if_addrs().values() for entry in its]
    own = {entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)}
    named = {path.name for path in tmp_path.iterdir()}
    assert named == {address for address in own if not address.startswith(("127.", "fe80", "::1"))}
