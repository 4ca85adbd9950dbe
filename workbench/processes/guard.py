"""Has a launcher of MPI accept TCP connections of its own user only.

``prterun`` of Open MPI and Hydra of MPICH listen on TCP ports, and obey whoever connects. The kernel suspends each
``accept`` of the launcher (seccomp, user notification), and `Guard`, in the process that has started the launcher,
accepts in its place: it asks the kernel which user owns the socket at the other end, and hands the connection over or
closes it. So no port answers another user, from ``listen`` on.

A filter is inherited. Programs below the launcher that are no launchers, ranks for example, accept by themselves.
This module is loaded at each start of a world: it imports little, and the C half of ``socket`` only.
"""

from __future__ import annotations

import _socket as socket
import ctypes
import errno
import fcntl
import mmap
import os
import select
import struct
import sys
import time

# `typing` takes longer to load than the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "WORKBENCH_GUARD"
"""Variable of guarded processes: the values that ``NoNewPrivs`` and ``Seccomp`` would have without a guard."""
SETTING = "workbench.mpi.guard"
"""The setting that installs guards."""
UNGUARDED = "cannot be guarded here"
"""What the world's log says where the kernel has no means for it."""

_PROGRAMS = frozenset(
    {
        *("prterun", "prte", "prted", "orterun", "orted"),  # Open MPI 5 and 4
        *("mpiexec", "mpirun", "mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy"),  # MPICH, Intel MPI
    }
)
# Of the machines for which Linux numbers differ: AUDIT_ARCH, seccomp, accept, accept4.
_MACHINES = {"x86_64": (0xC000003E, 317, 43, 288), "aarch64": (0xC00000B7, 277, 202, 242)}
_PIDFD_GETFD = 438
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
# SECCOMP_FILTER_FLAG_SPEC_ALLOW, without which older kernels slow ranks down, and _NEW_LISTENER.
_FILTER_FLAGS = 1 << 2 | 1 << 3
_RECV, _SEND, _ID_VALID, _ADDFD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_NOTIFICATION, _ANSWER, _FILE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI"), struct.Struct("=QIIII")
_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_SEND_IT = 1 << 1  # SECCOMP_ADDFD_FLAG_SEND, of Linux 5.14
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _ESTABLISHED = 4, 20, 1
_HEAD, _REQUEST, _TOLD = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=BBxx4s16s16s24xII")
_NO_COOKIE = b"\xff" * 8
_MAPPED = bytes(10) + b"\xff\xff"
# How addresses begin by which no other host is reached: loopback, and those of one link.
_OF_THIS_HOST = (b"\x7f", bytes(15) + b"\1", b"\xfe\x80")
# What the kernel, or the container around, answers where it lacks something that a guard needs. What strangers can
# cause is not there: whoever takes all ports (EADDRINUSE, EADDRNOTAVAIL) must not leave a launcher without its guard.
_LACKING = frozenset(
    {
        *(errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EBUSY, errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP),
        *(errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENETUNREACH),
    }
)
# Seconds for the kernel's answer about a socket, between two lines about refused peers, and between two looks whether
# calls that wait for a peer still wait.
_DIAG, _QUIET, _LOOK = 1.0, 60.0, 1.0

_libc = ctypes.CDLL(None, use_errno=True)


def lacks(error: OSError) -> bool:
    """Return whether an error of `install` or `Guard` shows that the kernel, or the container, cannot do it."""
    return error.errno in _LACKING


def install(channel: socket.socket) -> None:
    """Suspend each ``accept`` of this process and of its descendants, and wait until a `Guard` is ready.

    Parameters
    ----------
    channel
        Connection to the process of the guard, which gets what it serves by, or the number of an error.
    """
    before = privileges()
    try:
        listener = _filter()
    except OSError as error:
        channel.send(struct.pack("=i", error.errno))
        os._exit(1)
    files = listener.to_bytes(4, sys.byteorder)
    channel.sendmsg([struct.pack("=i", 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    os.close(listener)
    if not channel.recv(1):
        os._exit(1)  # the guard is not ready, or has ended
    os.environ[VARIABLE] = ":".join(before)


def privileges() -> list[str]:
    """Return the values of ``NoNewPrivs`` and ``Seccomp`` of this process."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        lines = dict(line.split(":", 1) for line in file)
    return [lines.get(name, "").strip() for name in ("NoNewPrivs", "Seccomp")]


def _filter() -> int:
    """Install the filter and return the file by which its notifications are served."""
    machine = os.uname().machine
    if machine not in _MACHINES or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"a guard is not made for the machine {machine}")
    architecture, seccomp, accept, accept4 = _MACHINES[machine]
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 4),  # load the architecture
            (0x15, 0, 4, architecture),
            (0x20, 0, 0, 0),  # load the number of the call
            (0x15, 1, 0, accept),
            (0x15, 0, 1, accept4),
            (0x06, 0, 0, 0x7FC00000),  # SECCOMP_RET_USER_NOTIF
            (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
        )
    )
    text = ctypes.create_string_buffer(program)
    given = struct.pack("@HP", len(program) // 8, ctypes.addressof(text))
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    return _checked(_libc.syscall(seccomp, _SET_MODE_FILTER, _FILTER_FLAGS, given))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Guard:
    """Accepts in the place of a launcher that is this process's child, until its last descendant has ended.

    Parameters
    ----------
    channel
        Connection to the child, which has called `install`, and waits until this guard is ready.
    child
        Pid of it.
    program
        Path of the program that the child becomes: a launcher, whatever its name is.
    hosts
        Folder that all hosts of the world share, which has a file for each of their addresses: peers from there are
        accepted. Empty: the world is on this host alone.

    Raises
    ------
    OSError
        If the child, or the kernel, cannot do it; `lacks` tells which.
    """

    def __init__(self, channel: socket.socket, child: int, program: str, hosts: str = "") -> None:
        self._user, self._hosts = os.geteuid(), hosts
        self._programs = _PROGRAMS | {os.path.basename(os.path.realpath(program))}
        text, ancillary, *_ = channel.recvmsg(4, socket.CMSG_SPACE(4))
        (number,) = struct.unpack("=i", text) if text else (errno.ECHILD,)
        if number:
            raise OSError(number, f"seccomp: {os.strerror(number)}")
        if not ancillary:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the message came without its file
        self._notifications = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
        # Calls that wait for a peer, by the number of the copy of their listening socket.
        self._waiting: dict[int, tuple[_Call, socket.socket]] = {}
        # Connections that were accepted for calls that a signal has interrupted, by the inode of the listening socket.
        self._left: dict[int, list[tuple[socket.socket, Any]]] = {}
        self._refused, self._quiet_until = 0, 0.0
        # Shared with the process of `_outlive`: the kernel reports a call once, also to a process that is killed then.
        self._note = mmap.mmap(-1, _NOTIFICATION.size)
        try:
            self._silent = self._check(child)
            self._outlive()
        except BaseException:
            os.close(self._notifications)
            raise
        channel.send(b"!")

    def _check(self, child: int) -> tuple[socket.socket, socket.socket]:
        """Check everything that serving a call takes, and return a connection on which nothing ever comes."""
        os.close(_copy(child, 0))
        try:
            fcntl.ioctl(self._notifications, _ADDFD, _FILE.pack(0, _SEND_IT, 0, 0, 0))
        except FileNotFoundError:
            pass  # there is no such call; an older kernel does not know the flag
        listening, peer = (socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(2))
        try:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            peer.connect(listening.getsockname())
            if owner(peer.getsockname(), peer.getpeername()) != self._user:
                raise OSError(errno.EOPNOTSUPP, "the kernel does not report whose a TCP socket is (inet_diag)")
            if _is_anybody(self._user):
                raise OSError(errno.EOPNOTSUPP, "users of this host have no numbers in this user namespace")
            while True:
                number, address = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001
                end = socket.socket(fileno=number)
                if address == peer.getsockname():
                    return peer, end
                end.close()  # a stranger was faster
        finally:
            listening.close()

    def serve(self) -> None:
        """Serve calls until there is nobody left to make one."""
        ready = select.poll()
        ready.register(self._notifications, select.POLLIN)
        if any(self._note):
            self._serve(ready)  # the process that served before may have been killed before it answered this call
        while True:
            for number, event in ready.poll(_LOOK * 1000 if self._waiting else None):
                if number != self._notifications:
                    self._go_on(number, ready)
                elif event & select.POLLIN:
                    self._receive(ready)
                else:
                    return
            for number, (call, _) in list(self._waiting.items()):
                if not call.is_there():
                    self._forget(number, ready)

    def _outlive(self) -> None:
        """Start a process that serves when this one has ended, until there is nobody left to make a call.

        Otherwise what is left of the world could not accept any more: ``srun`` for instance, which accepts the reports
        about the end of daemons, would wait for ever.
        """
        waits, lives = os.pipe()
        if middle := os.fork():
            os.close(waits)
            os.waitpid(middle, 0)
            return  # this process has the other end of the pipe for as long as it lives
        try:
            os.setsid()
            if os.fork() == 0:
                os.close(lives)
                null = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(null, number)
                _rename(b"workbench-guard")
                over = select.poll()
                over.register(waits, select.POLLIN)
                over.register(self._notifications, 0)
                over.poll()
                self.serve()
        finally:
            os._exit(0)  # whatever happens, there must not be two tethers

    def _receive(self, ready: select.poll) -> None:
        self._note[:] = bytes(_NOTIFICATION.size)  # the kernel demands zeroes
        # `fcntl.ioctl` passes a buffer of its own.
        note = (ctypes.c_char * _NOTIFICATION.size).from_buffer(self._note)
        if _libc.ioctl(self._notifications, ctypes.c_ulong(_RECV), note) == 0:
            self._serve(ready)  # else the call was interrupted, or its process has ended

    def _serve(self, ready: select.poll) -> None:
        """Answer the call that was received last, or have it wait for a peer."""
        call = _Call(self._notifications, *_NOTIFICATION.unpack(self._note))
        try:
            listening = self._listening(call)
            if listening is None:
                call.go_on()
                return
            blocking = os.get_blocking(listening.fileno())
            if not self._accept(call, listening, blocking=blocking, polled=True) and blocking:
                self._waiting[listening.fileno()] = call, listening
                ready.register(listening.fileno(), select.POLLIN)
        except Exception as error:  # noqa: BLE001  (other calls are to be served all the same)
            call.fail(error)

    def _go_on(self, number: int, ready: select.poll) -> None:
        if number not in self._waiting:
            return
        call, listening = self._waiting[number]
        try:
            if not call.is_there() or self._accept(call, listening, blocking=True):
                self._forget(number, ready)
        except Exception as error:  # noqa: BLE001  (as above)
            self._forget(number, ready)
            call.fail(error)

    def _forget(self, number: int, ready: select.poll) -> None:
        ready.unregister(number)
        self._waiting.pop(number)[1].close()

    def _listening(self, call: _Call) -> socket.socket | None:
        """Return a copy of the socket that a launcher accepts on; None: the call is not this guard's concern."""
        program = os.path.basename(os.readlink(f"/proc/{call.pid}/exe")).removesuffix(" (deleted)")
        if program not in self._programs:
            return None
        try:
            copy = socket.socket(fileno=_copy(call.process(), call.arguments[0]))
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                return None  # the kernel answers that by itself
            raise
        # A call that is over may have been of a process whose number another one has now.
        if copy.family in (socket.AF_INET, socket.AF_INET6) and call.is_there():
            return copy
        copy.close()
        return None

    def _accept(self, call: _Call, listening: socket.socket, *, blocking: bool, polled: bool = False) -> bool:
        """Accept one connection in the place of a call; return whether the call has an answer.

        Notes
        -----
        A caller that found a connection by `polled` and then waits does nothing else until the next one comes, and
        Hydra ends if a signal interrupts it. In the place of a stranger it gets a connection on which nothing comes.
        """
        inode = os.fstat(listening.fileno()).st_ino
        left = self._left.get(inode)
        if left:
            connection, peer = left.pop()
        else:
            if blocking and not select.select([listening], [], [], 0)[0]:
                return False
            # The C half of `socket` calls it so.
            number, peer = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            connection = socket.socket(fileno=number)
            if not self._may(connection, peer):
                connection.close()
                self._tell(peer, listening.getsockname())
                if not blocking:
                    call.answer(error=errno.EAGAIN)
                elif polled:
                    call.hand_over(self._silent[0], peer)
                return polled or not blocking
        try:
            call.hand_over(connection, peer)
        except OSError:
            # Interrupted: the call comes again.
            self._left.setdefault(inode, []).append((connection, peer))
            raise
        connection.close()
        return True

    def _may(self, connection: socket.socket, peer: Any) -> bool:
        try:
            user = owner(peer, connection.getsockname())
            if user is not None or not self._hosts:
                return user == self._user
            address = _packed(peer[0])
            # The own addresses are there too: a peer from one of them whose user is not known is a stranger.
            return address not in own_addresses() and os.path.exists(f"{self._hosts}/{_text(address)}")
        except (OSError, ValueError, struct.error):
            return False

    def _tell(self, peer: Any, own: Any) -> None:
        """Write a line about a refused peer, at most one a minute."""
        self._refused += 1
        if time.monotonic() < self._quiet_until:
            return
        count, self._refused, self._quiet_until = self._refused, 0, time.monotonic() + _QUIET
        report(
            f"refused a connection from {peer[0]} to port {own[1]} of the MPI launcher: it is not of user {self._user} "
            f"on a host of this world (connections refused since the last such line: {count}; setting {SETTING})"
        )


class _Call:
    """One ``accept`` that the kernel has suspended."""

    def __init__(self, notifications: int, number: int, pid: int, _: int, call: int, *rest: int) -> None:
        self._notifications, self._number, self.pid = notifications, number, pid
        self.arguments = rest[2:]
        accept4 = _MACHINES[os.uname().machine][3]
        self.flags = self.arguments[3] if call == accept4 else 0

    def process(self) -> int:
        """Return the process whose thread has made the call."""
        with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))

    def is_there(self) -> bool:
        """Return whether the call still waits."""
        try:
            fcntl.ioctl(self._notifications, _ID_VALID, struct.pack("=Q", self._number))
        except OSError:
            return False
        return True

    def answer(self, *, error: int = 0, flags: int = 0) -> None:
        try:
            fcntl.ioctl(self._notifications, _SEND, _ANSWER.pack(self._number, 0, -error, flags))
        except OSError:
            pass  # its process has ended, or a signal has interrupted the call

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        self.answer(error=getattr(error, "errno", None) or errno.ECONNABORTED)

    def go_on(self) -> None:
        """Let the kernel accept."""
        self.answer(flags=_CONTINUE)

    def hand_over(self, connection: socket.socket, peer: Any) -> None:
        """End the call with a connection."""
        os.set_blocking(connection.fileno(), not self.flags & socket.SOCK_NONBLOCK)
        if self.arguments[1]:
            self._write(_sockaddr(peer))
        newflags = os.O_CLOEXEC if self.flags & socket.SOCK_CLOEXEC else 0
        file = _FILE.pack(self._number, _SEND_IT, connection.fileno(), 0, newflags)
        fcntl.ioctl(self._notifications, _ADDFD, file)

    def _write(self, address: bytes) -> None:
        memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            if not self.is_there():  # else the number may be another process's
                raise ProcessLookupError(errno.ESRCH, "the call was interrupted")
            size = int.from_bytes(os.pread(memory, 4, self.arguments[2]), sys.byteorder)
            os.pwrite(memory, address[:size], self.arguments[1])
            os.pwrite(memory, len(address).to_bytes(4, sys.byteorder), self.arguments[2])
        finally:
            os.close(memory)


def _copy(process: int, number: int) -> int:
    """Return a copy of a file of another process."""
    pidfd = os.pidfd_open(process)
    try:
        copy = _checked(_libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
    finally:
        os.close(pidfd)
    os.set_inheritable(copy, False)
    return copy


def owner(peer: Any, own: Any) -> int | None:
    """Return the user of a TCP socket on this host.

    Parameters
    ----------
    peer
        Address that the socket is bound to, as ``accept`` returns it.
    own
        Address that the socket is connected to.

    Returns
    -------
    user : int or None
        None: there is no established connection between these two addresses whose end `peer` is on this host.
    """
    ends = _packed(peer[0]), _packed(own[0])
    family = socket.AF_INET if len(ends[0]) == 4 else socket.AF_INET6
    # Sockets of link-local addresses are bound to their interface.
    interface = peer[3] if len(peer) == 4 else 0
    ports = peer[1].to_bytes(2, "big") + own[1].to_bytes(2, "big")
    wanted = b"".join(end.ljust(16, b"\0") for end in ends)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED)
    body += ports + wanted + interface.to_bytes(4, sys.byteorder) + _NO_COOKIE
    with_kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG)
    try:
        with_kernel.settimeout(_DIAG)
        with_kernel.sendto(_HEAD.pack(_HEAD.size + len(body), _SOCK_DIAG_BY_FAMILY, 1, 1, 0) + body, (0, 0))
        answer = with_kernel.recv(8192)
    finally:
        with_kernel.close()
    if _HEAD.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    family, state, told, source, target, user, inode = _TOLD.unpack_from(answer, _HEAD.size)
    # A socket that listens is the answer where no other is found; one without an inode has no process any more.
    exact = told == ports and (_unmapped(family, source), _unmapped(family, target)) == ends
    return user if exact and state == _ESTABLISHED and inode else None


def _is_anybody(user: int) -> bool:
    """Return whether the kernel also names users by this number that have none in this user namespace."""
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
        if int(file.read()) != user:
            return False
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != ["0", "0", "4294967295"]


def _rename(name: bytes) -> None:
    """Have this process listed by another name: its words are those of a program that it does not run."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    os.pwrite(memory, name[: end - start].ljust(end - start, b"\0"), start)
    os.close(memory)


def publish(hosts: str) -> None:
    """Name the addresses of this host in a folder that is the user's alone, for the guards of other hosts."""
    for address in own_addresses():
        if not address.startswith(_OF_THIS_HOST):
            os.close(os.open(f"{hosts}/{_text(address)}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def own_addresses() -> set[bytes]:
    """Return the addresses of this host."""
    found, last = {_packed("127.0.0.1"), _packed("::1")}, ""
    with open("/proc/net/fib_trie", encoding="ascii") as file:
        for line in file:
            if "|--" in line:
                last = line.split()[1]
            elif "host LOCAL" in line:
                found.add(_packed(last))
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            found.update(bytes.fromhex(line.split()[0]) for line in file)
    except FileNotFoundError:
        pass  # there is no IPv6
    return found


def _text(address: bytes) -> str:
    return str(socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address))


def _packed(host: str) -> bytes:
    raw: bytes = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    return raw.removeprefix(_MAPPED)


def _unmapped(family: int, raw: bytes) -> bytes:
    return raw[:4] if family == socket.AF_INET else raw.removeprefix(_MAPPED)


def _sockaddr(address: Any) -> bytes:
    """Return an address as the kernel writes it."""
    family = socket.AF_INET if len(address) == 2 else socket.AF_INET6
    head = struct.pack("=H", family) + address[1].to_bytes(2, "big")
    if family == socket.AF_INET:
        return b"".join((head, _packed(address[0]), bytes(8)))
    host, _, flow, scope = address
    raw = socket.inet_pton(family, host.partition("%")[0])
    return b"".join((head, flow.to_bytes(4, "big"), raw, struct.pack("=I", scope)))


def report(text: str) -> None:
    """Write a line to the log of the world."""
    try:
        os.write(2, f"workbench: {text}\n".encode())
    except OSError:
        pass  # the disk is full
