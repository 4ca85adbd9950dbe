"""What a client reports of a head that does not answer, in one place for all that ask."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest
from distributed.core import ConnectionPool, PooledRPCCall

from workbench.errors import CollectiveTimeout, HeadUnreachable, InvalidRequest
from workbench.session.head_client import ClientHead

ADDRESS = "tls://10.0.0.1:40000"


def client(**handlers):
    """A client whose scheduler has these handlers."""
    return SimpleNamespace(status="running", scheduler=SimpleNamespace(address=ADDRESS, **handlers))


def raising(error):
    async def handler(**message):
        raise error

    return handler


async def test_a_handler_gets_its_message_as_it_is():
    async def handler(**message):
        return message

    answer = await ClientHead(client(workbench_fit=handler), "a fit").call("workbench_fit", 60, timeout=3, call="x")
    assert answer == {"timeout": 3, "call": "x"}


async def test_a_head_that_is_silent_is_reported_after_the_timeout():
    async def handler():
        await asyncio.Event().wait()

    with pytest.raises(HeadUnreachable):
        await ClientHead(client(workbench_fit=handler), "a fit").call("workbench_fit", 0)


async def test_a_connection_that_breaks_is_reported_with_its_cause():
    broken = ConnectionResetError("by peer")
    with pytest.raises(HeadUnreachable) as raised:
        await ClientHead(client(workbench_fit=raising(broken)), "a fit").call("workbench_fit")
    assert raised.value.__cause__ is broken


async def test_a_head_that_cannot_be_reached_is_reported():
    with pytest.raises(HeadUnreachable):
        await ClientHead(client(workbench_fit=raising(OSError("Timed out trying to connect"))), "a fit").call(
            "workbench_fit"
        )


async def test_a_client_that_closes_its_connections_meanwhile_has_lost_its_head():
    pool = ConnectionPool()
    await pool.close()
    closing = SimpleNamespace(status="closing", scheduler=PooledRPCCall("tcp://127.0.0.1:9", pool))
    with pytest.raises(HeadUnreachable):
        await ClientHead(closing, "a fit").call("workbench_fit")


@pytest.mark.parametrize(
    "error",
    [
        CollectiveTimeout("not in time"),
        RuntimeError("of the handler"),
        ValueError(),
        TimeoutError(),
        OSError(28, "full"),
    ],
)
async def test_an_error_of_a_handler_is_raised_as_it_is(error):
    with pytest.raises(type(error)) as raised:
        await ClientHead(client(workbench_fit=raising(error)), "a fit").call("workbench_fit")
    assert raised.value is error


async def test_another_scheduler_which_returns_none_is_no_head():
    async def unknown(**message):
        return None

    head = ClientHead(client(workbench_fit=unknown), "a fit")
    assert await head.call("workbench_fit") is None
    with pytest.raises(InvalidRequest):
        await head.begin("workbench_fit")


def test_a_thread_does_not_wait_for_a_client_that_is_closed():
    closed = SimpleNamespace(status="closed", scheduler=None)
    with pytest.raises(HeadUnreachable):
        ClientHead(closed, "a fit").wait("workbench_fit", 60)


@pytest.mark.parametrize("error", [RuntimeError("Event loop is closed"), CancelledError()])
def test_a_loop_that_ends_meanwhile_has_lost_the_head(error):
    def sync(*args, **message):
        raise error

    ending = client()
    ending.sync = sync
    with pytest.raises(HeadUnreachable):
        ClientHead(ending, "a fit").wait("workbench_fit", 60)
