"""Listeners that limit connections without the cluster's certificate, and the connector of ``tls://``.

Any user of the node can connect to a port. A connection of distributed's own listener waits for the TLS handshake
without a deadline, until the process has no files left for clients with the key, and each failure is logged. Each
handshake takes time of the process, so other users of the host get few of them.

For a peer that ends before the handshake Tornado raises ValueError, which distributed takes for a malformed address: a
client stops trying to reach its scheduler, logs a traceback, and raises the error once more when the client is closed.
`RetryingTLSConnector` reports a lost connection instead.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed.comm.core import CommClosedError
from distributed.comm.tcp import TLSBackend, TLSConnector, TLSListener
from tornado.ioloop import IOLoop
from tornado.netutil import add_accept_handler

from workbench.host import processes
from workbench.host.guard import owner

if TYPE_CHECKING:
    from tornado.iostream import IOStream


logger = logging.getLogger("workbench.comm")

# Seconds for the handshake, the same as those of distributed for the connecting side.
_HANDSHAKE_TIMEOUT = 30.0
# Connections without a complete handshake, at most: each takes 50 KiB of memory.
_MAX_STRANGERS = 4096
# Connections in a second that other users of the host get: someone may have received the certificate.
_SHARE = 10
# Seconds between two lines in the log.
_LOG_INTERVAL = 60.0
# Seconds until the next accept() if no file is free.
_PAUSE = 0.1
# Errors of accept() if the system cannot open one more connection.
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Warnings:
    """Logs warnings that any user can cause: one per interval, with the number of omitted ones."""

    def __init__(self) -> None:
        self._next, self._omitted = 0.0, 0

    def warn(self, message: str) -> None:
        """Log a warning, or count it."""
        now = time.monotonic()
        if now < self._next:
            self._omitted += 1
            return
        logger.warning("%s%s", message, f" ({self._omitted} more were not logged)" * bool(self._omitted))
        self._next, self._omitted = now + _LOG_INTERVAL, 0


_warnings = Warnings()


class GuardedTLSListener(TLSListener):
    """Distributed's listener, with a deadline for handshakes and a limit of simultaneous ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The oldest is first. They use at most half of the files.
        self._strangers: dict[IOStream, None] = {}
        self._most = min(processes.open_files_limit() // 2, _MAX_STRANGERS)

    async def start(self) -> None:
        """Listen."""
        await super().start()
        # In tornado an error of accept() ends the callback, which is then called again immediately.
        server: Any = self.tcp_server
        handlers: dict[int, Callable[[], None]] = server._handlers  # noqa: SLF001
        for number, listening in server._sockets.items():  # noqa: SLF001
            handlers[number]()
            accepting: Any = _Accepting(listening, self.turn_away)
            handlers[number] = add_accept_handler(accepting, partial(_serve, server))

    def stop(self) -> None:
        """Stop listening, and close all connections without a complete handshake."""
        super().stop()
        while self.turn_away("the listener was closed"):
            pass

    def turn_away(self, reason: str) -> bool:
        """Close the oldest connection without a complete handshake; return whether one existed."""
        for stream in self._strangers:
            del self._strangers[stream]
            stream.close(exc_info=ConnectionAbortedError(reason))
            return True
        return False

    async def _prepare_stream(self, stream: IOStream, address: str) -> IOStream | None:
        self._strangers[stream] = None
        if len(self._strangers) > self._most:
            self.turn_away(f"more than {self._most} newer connections were waiting for a handshake")
        timeout = TimeoutError(f"the handshake was not complete after {_HANDSHAKE_TIMEOUT:.0f} s")
        timer = asyncio.get_running_loop().call_later(_HANDSHAKE_TIMEOUT, stream.close, timeout)
        try:
            await stream.wait_for_handshake()  # type: ignore[attr-defined]
        except OSError as error:
            _warnings.warn(f"a connection from {address} did not present the cluster's certificate: {error}")
            return None
        finally:
            timer.cancel()
            self._strangers.pop(stream, None)
        return stream


def _serve(server: Any, connection: Any, address: Any) -> None:
    """Pass a connection to the server of a listener."""
    try:
        server._handle_connection(connection, address)  # noqa: SLF001
    except OSError as error:  # the peer has closed the connection
        connection.close()
        _warnings.warn(f"a connection from {address} ended before its TLS handshake: {error}")


class _Accepting:
    """A listening socket for tornado that closes an old connection if no file is free for a new one."""

    def __init__(self, listening: Any, turn_away: Callable[[str], bool]) -> None:
        self._listening, self._turn_away = listening, turn_away
        self.fileno, self.close = listening.fileno, listening.close
        self._second, self._accepted = 0, 0  # the connections of other users in the present second

    def accept(self) -> Any:
        """Return a connection and the peer's address; raise BlockingIOError if no connection waits."""
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                _warnings.warn(f"one more connection cannot be accepted: {error}")
                if not self._turn_away(f"a newer connection needs the place: {error}"):
                    # Otherwise the loop would call accept() again and again.
                    loop = IOLoop.current()
                    loop.update_handler(self.fileno(), 0)
                    loop.call_later(_PAUSE, self._resume)
                    raise BlockingIOError from error
                continue
            if is_of_another_user(connection, address) and self._has_no_share():
                connection.close()
                raise ConnectionAbortedError  # tornado then accepts the next one
            return connection, address

    def _has_no_share(self) -> bool:
        if self._second != (second := int(time.monotonic())):
            self._second, self._accepted = second, 0
        self._accepted += 1
        if self._accepted > _SHARE:
            _warnings.warn(f"other users of this host open more than {_SHARE} connections in a second")
        return self._accepted > _SHARE

    def _resume(self) -> None:
        if self.fileno() >= 0:  # the socket is still open
            IOLoop.current().update_handler(self.fileno(), IOLoop.READ)


def is_of_another_user(connection: Any, address: Any) -> bool:
    """Return whether a process of this host, but not of this user, has opened a connection."""
    try:
        own = connection.getsockname()
        user = owner(address, own)
        # If both ends have one address, the other is on this host too, and without an owner it was closed. Otherwise it
        # has an owner only if it is on this host.
        return user != os.geteuid() and (user is not None or bool(address[0] == own[0]))
    except (OSError, ValueError, struct.error):
        return False  # the kernel does not report the owner


def guard_listeners() -> None:
    """Make this listener the one of all later ``tls://`` servers in this process."""
    TLSBackend._listener_class = GuardedTLSListener  # noqa: SLF001
    # Tornado logs each failed handshake, which `Warnings` logs already.
    logging.getLogger("tornado.general").addFilter(_is_not_of_a_handshake)


def _is_not_of_a_handshake(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("SSL Error on")


# The beginning of tornado's message for a stream that cannot start TLS: of a new stream, only a closed one cannot.
_CLOSED = "IOStream is not idle"


class RetryingTLSConnector(TLSConnector):
    """Distributed's connector, with an error after which distributed tries again."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Any:
        """Return a connection.

        Raises
        ------
        CommClosedError
            If the peer has closed the connection.
        """
        try:
            return await super().connect(address, deserialize, **connection_args)
        except ValueError as error:
            if not str(error).startswith(_CLOSED):
                raise
            message = f"{self.prefix}{address} closed the connection before the TLS handshake"
            raise CommClosedError(message) from error


def use_retrying_connector() -> None:
    """Make this connector the one of all later connections to ``tls://`` of this process."""
    TLSBackend._connector_class = RetryingTLSConnector  # noqa: SLF001
