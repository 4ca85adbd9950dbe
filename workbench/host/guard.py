"""Makes a launcher of MPI accept TCP connections only of the user who started the launcher.

``prterun`` of Open MPI and Hydra of MPICH listen on TCP ports, and execute the commands of every peer. The kernel
suspends each ``accept`` of the launcher (seccomp, user notification), and `Guard`, in the process that has started the
launcher, accepts in its place: it queries the kernel for the owner of the socket at the other end, and passes the
connection on or closes it. So no port answers another user, from ``listen`` on.

A filter is inherited, so the launcher is every process below the tether, apart from ranks, the processes that become
ranks, and what ranks start: these accept connections themselves.
This module is loaded at each start of a world, so it imports little, and only the C half of ``socket``.
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
OF_RANK = "rank"
"""The value of `VARIABLE` in what a rank starts."""
SETTING = "workbench.mpi.guard"
"""The setting that installs guards."""
UNGUARDED = "cannot be guarded here"
"""Phrase in the log of the world if the kernel does not support a guard."""

# Programs that accept connections of other users, the daemons of Slurm, and authenticate their peers.
_AUTHENTICATING = frozenset({"srun"})
# The numbers that depend on the machine: AUDIT_ARCH, seccomp, accept, accept4.
_MACHINES = {"x86_64": (0xC000003E, 317, 43, 288), "aarch64": (0xC00000B7, 277, 202, 242)}
_PIDFD_GETFD = 438
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
# SECCOMP_FILTER_FLAG_SPEC_ALLOW, without which older kernels slow ranks down, and _NEW_LISTENER.
_FILTER_FLAGS = 1 << 2 | 1 << 3
_RECV, _SEND, _ID_VALID, _ADDFD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_NOTIFICATION, _ANSWER, _FILE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI"), struct.Struct("=QIIII")
_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_DECLARES_RANK = 0x57420000  # flags of `accept4` that the kernel refuses, and no other program uses
_SEND_IT = 1 << 1  # SECCOMP_ADDFD_FLAG_SEND, of Linux 5.14
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _ESTABLISHED = 4, 20, 1
_NETLINK_HEADER, _REQUEST, _DIAG_MESSAGE = (
    struct.Struct("=IHHII"),
    struct.Struct("=BBBBI"),
    struct.Struct("=BBxx4s16s16s24xII"),
)
_NO_COOKIE = b"\xff" * 8
_MAPPED = bytes(10) + b"\xff\xff"
# Prefixes of addresses that do not lead to another host: loopback and link-local addresses.
_OF_THIS_HOST = (b"\x7f", bytes(15) + b"\1", b"\xfe\x80")
# Errors of a kernel or a container without support for a guard. Errors that another user can cause are not included: a
# user who occupies all ports (EADDRINUSE, EADDRNOTAVAIL) must not start a launcher without its guard.
_LACKING = frozenset(
    {
        *(errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EBUSY, errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP),
        *(errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENETUNREACH),
    }
)
# Seconds for the kernel's answer about a socket, between two log lines about refused peers, and between two checks of
# the calls that wait for a peer.
_DIAG_TIMEOUT, _LOG_INTERVAL, _POLL_INTERVAL = 1.0, 60.0, 1.0

_libc = ctypes.CDLL(None, use_errno=True)


def lacks(error: OSError) -> bool:
    """Return whether an error of `install` or `Guard` means that the kernel or the container has no support."""
    return error.errno in _LACKING


def install(channel: socket.socket) -> None:
    """Suspend each ``accept`` of this process and its descendants, and wait until a `Guard` is ready.

    `channel` is connected to the process of the guard, which receives the file of the notifications, or an errno.
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
        os._exit(1)  # the guard has failed or ended
    os.environ[VARIABLE] = ":".join(before)


def declare_rank() -> None:
    """Have the guard of this process remember that it is a rank, whatever its command line is, now or later."""
    unused = socket.socket(socket.AF_UNIX)
    _libc.accept4(unused.fileno(), None, None, _DECLARES_RANK)
    unused.close()


def privileges() -> list[str]:
    """Return the values of ``NoNewPrivs`` and ``Seccomp`` of this process."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        lines = dict(line.split(":", 1) for line in file)
    return [lines.get(name, "").strip() for name in ("NoNewPrivs", "Seccomp")]


def _filter() -> int:
    """Install the filter and return the file of its notifications."""
    machine = os.uname().machine
    if machine not in _MACHINES or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"a guard does not support the machine {machine}")
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
    filter_program = struct.pack("@HP", len(program) // 8, ctypes.addressof(text))
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    return _checked(_libc.syscall(seccomp, _SET_MODE_FILTER, _FILTER_FLAGS, filter_program))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Guard:
    """Accepts connections in place of a launcher, a child of this process, until its last descendant has ended.

    Parameters
    ----------
    channel
        Connection to the child, which has called `install` and waits until this guard is ready.
    child
        Pid of the child.
    hosts
        Shared folder of all hosts of the world with a file for each of their addresses, whose peers are accepted. Empty
        if the world is on this host only.

    Raises
    ------
    OSError
        If the child has failed, or the kernel has no support (see `lacks`).
    """

    def __init__(self, channel: socket.socket, child: int, hosts: str = "") -> None:
        self._user, self._hosts = os.geteuid(), hosts
        text, ancillary, *_ = channel.recvmsg(4, socket.CMSG_SPACE(4))
        (number,) = struct.unpack("=i", text) if text else (errno.ECHILD,)
        if number:
            raise OSError(number, f"seccomp: {os.strerror(number)}")
        if not ancillary:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the message has arrived without its file
        self._notifications = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
        # Calls that wait for a peer, by the file number of the copy of their listening socket.
        self._waiting: dict[int, tuple[_Call, socket.socket]] = {}
        # Connections accepted for calls that a signal then interrupted, by the inode of the listening socket.
        self._leftover: dict[int, list[tuple[socket.socket, Any]]] = {}
        self._refused, self._quiet_until = 0, 0.0
        # Whether a process is a launcher, by its pid and start time.
        self._launchers: dict[tuple[int, bytes], bool] = {}
        # Shared with the process of `_start_successor`: the kernel reports a call only once, and the receiving process
        # may be killed.
        self._notification = mmap.mmap(-1, _NOTIFICATION.size)
        try:
            self._idle = self._check(child)
            self._start_successor()
        except BaseException:
            os.close(self._notifications)
            raise
        channel.send(b"!")

    def _check(self, child: int) -> tuple[socket.socket, socket.socket]:
        """Check all kernel features that a guard needs, and return a connection without data."""
        os.close(_copy_file(child, 0))
        try:
            fcntl.ioctl(self._notifications, _ADDFD, _FILE.pack(0, _SEND_IT, 0, 0, 0))
        except FileNotFoundError:
            pass  # the call does not exist, but the kernel supports the flag
        listening, peer = (socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(2))
        try:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            peer.connect(listening.getsockname())
            if owner(peer.getsockname(), peer.getpeername()) != self._user:
                raise OSError(errno.EOPNOTSUPP, "the kernel does not report the owner of a TCP socket (inet_diag)")
            if _is_anybody(self._user):
                raise OSError(errno.EOPNOTSUPP, "users of this host have no numbers in this user namespace")
            while True:
                number, address = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001
                end = socket.socket(fileno=number)
                if address == peer.getsockname():
                    return peer, end
                end.close()  # another process has connected first
        finally:
            listening.close()

    def serve(self) -> None:
        """Serve calls until no process can make one."""
        ready = select.poll()
        ready.register(self._notifications, select.POLLIN)
        if any(self._notification):
            self._serve(ready)  # the previous process may have been killed before it answered this call
        while True:
            for number, event in ready.poll(_POLL_INTERVAL * 1000 if self._waiting else None):
                if number != self._notifications:
                    self._continue(number, ready)
                elif event & select.POLLIN:
                    self._receive(ready)
                else:
                    return
            for number, (call, _) in list(self._waiting.items()):
                if not call.is_pending():
                    self._remove(number, ready)

    def _start_successor(self) -> None:
        """Start a process that serves calls after this process has ended.

        Otherwise the remaining processes of the world could not accept connections. For example, ``srun`` accepts the
        reports about the end of daemons, and would wait without end.
        """
        waits, lives = os.pipe()
        if middle := os.fork():
            os.close(waits)
            os.waitpid(middle, 0)
            return  # this process keeps the other end of the pipe open until it ends
        try:
            os.setsid()
            if os.fork() == 0:
                os.close(lives)
                null = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(null, number)
                _rename(b"workbench-guard")
                end = select.poll()
                end.register(waits, select.POLLIN)
                end.register(self._notifications, 0)
                end.poll()
                self.serve()
        finally:
            os._exit(0)  # after any error, this process must not continue as a second tether

    def _receive(self, ready: select.poll) -> None:
        self._notification[:] = bytes(_NOTIFICATION.size)  # the kernel requires zeros
        # `fcntl.ioctl` would pass a copy of the buffer.
        buffer = (ctypes.c_char * _NOTIFICATION.size).from_buffer(self._notification)
        if _libc.ioctl(self._notifications, ctypes.c_ulong(_RECV), buffer) == 0:
            self._serve(ready)  # otherwise the call was interrupted, or its process has ended

    def _serve(self, ready: select.poll) -> None:
        """Answer the last received call, or let it wait for a peer."""
        call = _Call(self._notifications, *_NOTIFICATION.unpack(self._notification))
        try:
            listening = self._listening_socket(call)
            if listening is None:
                call.let_kernel_accept()
                return
            blocking = os.get_blocking(listening.fileno())
            if not self._accept(call, listening, blocking=blocking, polled=True) and blocking:
                self._waiting[listening.fileno()] = call, listening
                ready.register(listening.fileno(), select.POLLIN)
        except Exception as error:  # noqa: BLE001  (other calls must still be served)
            call.fail(error)

    def _continue(self, number: int, ready: select.poll) -> None:
        if number not in self._waiting:
            return
        call, listening = self._waiting[number]
        try:
            if not call.is_pending() or self._accept(call, listening, blocking=True):
                self._remove(number, ready)
        except Exception as error:  # noqa: BLE001  (as above)
            self._remove(number, ready)
            call.fail(error)

    def _remove(self, number: int, ready: select.poll) -> None:
        ready.unregister(number)
        self._waiting.pop(number)[1].close()

    def _listening_socket(self, call: _Call) -> socket.socket | None:
        """Return a copy of the listening socket of a launcher, or None if the kernel can serve the call."""
        if not self._is_launcher(call):
            return None
        try:
            copy = socket.socket(fileno=_copy_file(call.process(), call.arguments[0]))
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                return None  # the kernel reports this error
            raise
        # If the call has ended, its pid may now belong to another process.
        if copy.family in (socket.AF_INET, socket.AF_INET6) and call.is_pending():
            return copy
        copy.close()
        return None

    def _is_launcher(self, call: _Call) -> bool:
        """Decide once per process whether it is a launcher: a rank may change its command line, as by setproctitle."""
        process = call.process()
        with open(f"/proc/{process}/stat", "rb") as file:
            key = process, file.read().rpartition(b")")[2].split()[19]
        declares = call.flags == _DECLARES_RANK
        if declares or key not in self._launchers:
            launcher = not declares and is_launcher(call.pid)
            if not call.is_pending():
                return launcher  # the pid may now belong to another process
            self._launchers[key] = launcher
        return self._launchers[key]

    def _accept(self, call: _Call, listening: socket.socket, *, blocking: bool, polled: bool = False) -> bool:
        """Accept one connection in place of a call; return whether the call has an answer.

        A caller whose poll has reported a connection (`polled`), and whose accept then waits, is blocked until the next
        connection, and Hydra ends if a signal interrupts this. So in place of a refused connection the call gets a
        connection without data.
        """
        inode = os.fstat(listening.fileno()).st_ino
        if leftover := self._leftover.get(inode):
            connection, peer = leftover.pop()
        else:
            if blocking and not select.select([listening], [], [], 0)[0]:
                return False
            # `_accept` is the method of the C half of `socket`.
            number, peer = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            connection = socket.socket(fileno=number)
            if not is_allowed(connection, peer, self._user, self._hosts):
                connection.close()
                self._report_refusal(peer, listening.getsockname())
                if not blocking:
                    call.answer(error=errno.EAGAIN)
                elif polled:
                    call.return_connection(self._idle[0], peer)
                return polled or not blocking
        try:
            call.return_connection(connection, peer)
        except OSError:
            # The call was interrupted, and its process will repeat it.
            self._leftover.setdefault(inode, []).append((connection, peer))
            raise
        connection.close()
        return True

    def _report_refusal(self, peer: Any, own: Any) -> None:
        """Write a line about a refused peer, at most one per minute."""
        self._refused += 1
        if time.monotonic() < self._quiet_until:
            return
        count, self._refused, self._quiet_until = self._refused, 0, time.monotonic() + _LOG_INTERVAL
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
        """Return the pid of the process that made the call."""
        with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))

    def is_pending(self) -> bool:
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
            pass  # the process has ended, or a signal has interrupted the call

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        self.answer(error=getattr(error, "errno", None) or errno.ECONNABORTED)

    def let_kernel_accept(self) -> None:
        """Continue the call in the kernel."""
        self.answer(flags=_CONTINUE)

    def return_connection(self, connection: socket.socket, peer: Any) -> None:
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
            if not self.is_pending():  # the pid may now belong to another process
                raise ProcessLookupError(errno.ESRCH, "the call was interrupted")
            size = int.from_bytes(os.pread(memory, 4, self.arguments[2]), sys.byteorder)
            os.pwrite(memory, address[:size], self.arguments[1])
            os.pwrite(memory, len(address).to_bytes(4, sys.byteorder), self.arguments[2])
        finally:
            os.close(memory)


def is_launcher(process: int) -> bool:
    """Return whether a process below the tether is no rank, will not become one, and was not started by one."""
    program = os.path.basename(os.readlink(f"/proc/{process}/exe")).removesuffix(" (deleted)")
    if program in _AUTHENTICATING:
        return False
    with open(f"/proc/{process}/environ", "rb") as file:
        if f"{VARIABLE}={OF_RANK}".encode() in file.read().split(b"\0"):
            return False
    with open(f"/proc/{process}/cmdline", "rb") as file:
        arguments = file.read().split(b"\0")[1:]
    # Python runs a module of this package, or the file of a stub. In the arguments of a launcher others are first.
    first = next((argument for argument in arguments if not argument.startswith(b"-")), b"")
    return not (first.startswith(b"workbench.") or first.endswith(b"/workbench/host/stub.py"))


def _copy_file(process: int, number: int) -> int:
    """Return a copy of a file of another process."""
    pidfd = os.pidfd_open(process)
    try:
        copy = _checked(_libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
    finally:
        os.close(pidfd)
    os.set_inheritable(copy, False)
    return copy


def owner(peer: Any, own: Any) -> int | None:
    """Return the user id of the socket `peer`, an address from ``accept``, with a connection to the address `own`.

    None means that no established connection between these addresses has its end `peer` on this host.
    """
    ends = _packed(peer[0]), _packed(own[0])
    family = socket.AF_INET if len(ends[0]) == 4 else socket.AF_INET6
    # Sockets of link-local addresses are bound to their interface.
    interface = peer[3] if len(peer) == 4 else 0
    ports = peer[1].to_bytes(2, "big") + own[1].to_bytes(2, "big")
    addresses = b"".join(end.ljust(16, b"\0") for end in ends)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED)
    body += ports + addresses + interface.to_bytes(4, sys.byteorder) + _NO_COOKIE
    header = _NETLINK_HEADER.pack(_NETLINK_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, 1, 1, 0)
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG)
    try:
        netlink.settimeout(_DIAG_TIMEOUT)
        netlink.sendto(header + body, (0, 0))
        answer = netlink.recv(8192)
    finally:
        netlink.close()
    if _NETLINK_HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    family, state, actual, source, target, user, inode = _DIAG_MESSAGE.unpack_from(answer, _NETLINK_HEADER.size)
    # If no socket matches, the kernel returns a listening one. A socket without an inode has no process.
    exact = actual == ports and (_unmapped(family, source), _unmapped(family, target)) == ends
    return user if exact and state == _ESTABLISHED and inode else None


def is_allowed(connection: socket.socket, peer: Any, user: int, hosts: str) -> bool:
    """Return whether the peer of a connection is a process of this user, or on a host that the folder `hosts` names."""
    try:
        found = owner(peer, connection.getsockname())
        if found is not None or not hosts:
            return found == user
        address = _packed(peer[0])
        # The folder contains the own addresses too. A local peer without a known user is refused.
        return address not in own_addresses() and os.path.exists(f"{hosts}/{_address_text(address)}")
    except (OSError, ValueError, struct.error):
        return False


def _is_anybody(user: int) -> bool:
    """Return whether the kernel also reports this id for users without an id in this user namespace."""
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
        if int(file.read()) != user:
            return False
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != ["0", "0", "4294967295"]


def _rename(name: bytes) -> None:
    """Replace the command line of this process, which is that of another program."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    os.pwrite(memory, name[: end - start].ljust(end - start, b"\0"), start)
    os.close(memory)


def publish(hosts: str) -> None:
    """Write the addresses of this host to a private folder, for the guards of other hosts."""
    for address in own_addresses():
        if not address.startswith(_OF_THIS_HOST):
            os.close(os.open(f"{hosts}/{_address_text(address)}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def own_addresses() -> set[bytes]:
    """Return the addresses of this host."""
    addresses, last = {_packed("127.0.0.1"), _packed("::1")}, ""
    with open("/proc/net/fib_trie", encoding="ascii") as file:
        for line in file:
            if "|--" in line:
                last = line.split()[1]
            elif "host LOCAL" in line:
                addresses.add(_packed(last))
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            addresses.update(bytes.fromhex(line.split()[0]) for line in file)
    except FileNotFoundError:
        pass  # the kernel has no IPv6
    return addresses


def _address_text(address: bytes) -> str:
    return str(socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address))


def _packed(host: str) -> bytes:
    raw: bytes = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    return raw.removeprefix(_MAPPED)


def _unmapped(family: int, raw: bytes) -> bytes:
    return raw[:4] if family == socket.AF_INET else raw.removeprefix(_MAPPED)


def _sockaddr(address: Any) -> bytes:
    """Return an address as a ``sockaddr`` of the kernel."""
    family = socket.AF_INET if len(address) == 2 else socket.AF_INET6
    header = struct.pack("=H", family) + address[1].to_bytes(2, "big")
    if family == socket.AF_INET:
        return b"".join((header, _packed(address[0]), bytes(8)))
    host, _, flow, scope = address
    raw = socket.inet_pton(family, host.partition("%")[0])
    return b"".join((header, flow.to_bytes(4, "big"), raw, struct.pack("=I", scope)))


def report(text: str) -> None:
    """Write a line to the log of the world."""
    try:
        os.write(2, f"workbench: {text}\n".encode())
    except OSError:
        pass  # the disk is full
