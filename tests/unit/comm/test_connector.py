"""A peer that ends while a connection to it is made."""

from __future__ import annotations

import pytest
from distributed.comm import connect, listen
from distributed.comm.core import CommClosedError
from support.patience import DEADLINE
from tornado.iostream import IOStream

from workbench.comm import certificates, listener


@pytest.fixture
def security(tmp_path):
    listener.use_retrying_connector()
    certificates.make(tmp_path, "tests")
    return certificates.security(tmp_path)


async def _answer(comm):
    await comm.write("served")
    await comm.close()


@pytest.mark.parametrize("scheme", ["tls", "mpi"])
async def test_a_peer_that_ends_before_the_handshake_is_tried_again(scheme, security, monkeypatch):
    start_tls, attempts = IOStream.start_tls, []

    def closed_first(stream, *args, **kwargs):
        attempts.append(stream)
        if len(attempts) == 1:
            stream.close()
        return start_tls(stream, *args, **kwargs)

    monkeypatch.setattr(IOStream, "start_tls", closed_first)
    async with listen(f"{scheme}://127.0.0.1", _answer, **security.get_listen_args("scheduler")) as listening:
        arguments = security.get_connection_args("client")
        comm = await connect(listening.contact_address, timeout=DEADLINE, **arguments)
        assert await comm.read() == "served"
        await comm.close()
        assert len(attempts) == 2

        del attempts[:]
        _, address = listening.contact_address.split("://")
        with pytest.raises(CommClosedError, match=r"^tls://\S+ closed the connection before the TLS handshake$"):
            await listener.RetryingTLSConnector().connect(address, **arguments)


async def test_an_address_that_is_not_valid_is_not_tried_again(security):
    with pytest.raises(ValueError, match="port"):
        await connect("tls://127.0.0.1:port", timeout=DEADLINE, **security.get_connection_args("client"))
