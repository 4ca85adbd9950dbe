"""What strangers who connect to a port of the cluster can occupy."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

import pytest
from distributed.comm import connect, listen
from support.patience import DEADLINE

from workbench.comm import certificates, guard, listener
from workbench.host import processes


@pytest.fixture(scope="module")
def security(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    certificates.make(folder, "tests")
    return certificates.security(folder)


@pytest.fixture(autouse=True)
def _guarded(monkeypatch):
    monkeypatch.setattr(listener, "_warnings", listener.Warnings())
    guard()


def _listening(scheme, security):
    return listen(f"{scheme}://127.0.0.1", _answer, **security.get_listen_args("scheduler"))


async def _answer(comm):
    await comm.write("served")
    await comm.close()


async def _stranger(listening):
    host, port = listening.get_host_port()
    return await asyncio.open_connection(host, port)


async def _ends(*strangers):
    async with asyncio.timeout(DEADLINE):
        for reader, writer in strangers:
            assert await reader.read() == b""
            writer.close()


async def _is_served(listening, security):
    comm = await connect(listening.contact_address, timeout=DEADLINE, **security.get_connection_args("client"))
    assert await comm.read() == "served"
    await comm.close()


@pytest.mark.parametrize("scheme", ["tls", "mpi"])
async def test_who_is_silent_is_turned_away_after_some_time(scheme, security, monkeypatch):
    monkeypatch.setattr(listener, "_HANDSHAKE_TIMEOUT", 0.01)
    async with _listening(scheme, security) as listening:
        await _ends(await _stranger(listening))
        monkeypatch.setattr(listener, "_HANDSHAKE_TIMEOUT", DEADLINE)
        await _is_served(listening, security)


@pytest.mark.parametrize("scheme", ["tls", "mpi"])
async def test_strangers_take_a_bounded_number_of_places_and_who_has_the_key_is_served(scheme, security, monkeypatch):
    monkeypatch.setattr(listener, "_MAX_STRANGERS", 2)
    async with _listening(scheme, security) as listening:
        strangers = [await _stranger(listening) for _ in range(6)]
        await _is_served(listening, security)
        await _ends(*strangers[:5])
        assert not strangers[5][0].at_eof(), "the newest is still given time"
    await _ends(strangers[5])


async def test_strangers_take_little_memory_however_many_files_there_are(security, monkeypatch):
    monkeypatch.setattr(processes, "open_files_limit", lambda: 1 << 20)
    async with _listening("tls", security) as listening:
        assert listening._most * (50 << 10) <= 256 << 20


async def test_failed_handshakes_are_logged_now_and_then(security, caplog):
    async with _listening("tls", security) as listening:
        strangers = [await _stranger(listening) for _ in range(20)]
        for _, writer in strangers:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(DEADLINE):
            for reader, writer in strangers:
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
                writer.close()
        assert len(caplog.records) == 1
        assert "did not present the cluster's certificate" in caplog.text


class _Full:
    """A listening socket of a process that has as many files open as it may have, for some attempts."""

    attempts = 0

    def __init__(self, listening):
        self._listening = listening
        self.fileno, self.close = listening.fileno, listening.close

    def accept(self):
        if self.attempts:
            _Full.attempts -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()


async def test_who_has_the_key_is_served_when_files_have_run_out(security, monkeypatch, caplog):
    accepting = listener._Accepting
    monkeypatch.setattr(listener, "_Accepting", lambda its, turn_away: accepting(_Full(its), turn_away))
    monkeypatch.setattr(listener, "_PAUSE", 0.001)
    async with _listening("tls", security) as listening:
        stranger = await _stranger(listening)
        async with asyncio.timeout(DEADLINE):
            while not listening._strangers:  # noqa: ASYNC110  (tornado has no event for it)
                await asyncio.sleep(0)
        monkeypatch.setattr(_Full, "attempts", 30)
        await _is_served(listening, security)
        await _ends(stranger)
    assert _Full.attempts == 0
    assert len(caplog.records) == 1
    assert "one more connection cannot be accepted" in caplog.text


async def test_other_users_of_the_host_get_their_share_of_connections_and_the_user_as_many_as_needed(
    security, monkeypatch
):
    monkeypatch.setattr(listener, "_SHARE", 0)
    async with _listening("tls", security) as listening:
        await _is_served(listening, security)
        monkeypatch.setattr(listener, "owner", lambda *_: os.geteuid() + 1)
        await _ends(*[await _stranger(listening) for _ in range(5)])
        monkeypatch.setattr(listener, "_SHARE", 1000)
        await _is_served(listening, security)


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_an_own_address_is_of_its_user_and_that_of_another_host_is_of_no_user_here(source, monkeypatch):
    with (
        socket.create_server(("127.0.0.1", 0)) as listens,
        socket.create_connection(listens.getsockname(), DEADLINE, (source, 0)),
    ):
        accepted, address = listens.accept()
        with accepted:
            assert not listener.is_of_another_user(accepted, address)
            assert not listener.is_of_another_user(accepted, ("192.0.2.77", 4000))
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            assert listener.is_of_another_user(accepted, address)
