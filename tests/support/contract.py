"""What distributed expects of every connection, whatever its scheme: checks for both ends."""

from __future__ import annotations

import asyncio
import re
import socket
import time

import numpy as np
import pytest
from distributed.comm import CommClosedError, get_address_host, listen, parse_host_port, resolve_address
from distributed.comm.registry import get_backend
from distributed.protocol import Serialized, deserialize, serialize, to_serialize

from support.ends import Check, End

CHECKS: list[Check] = []


def contract(check: Check) -> Check:
    CHECKS.append(check)
    return check


@contract
async def a_question_is_answered(end: End):
    comm = await end.pair()
    if end.left:
        await comm.write({"op": "ping", "data": 1234})
        assert await comm.read() == {"op": "pong", "data": 1234}
    else:
        message = await comm.read()
        assert message == {"op": "ping", "data": 1234}
        await comm.write(message | {"op": "pong"})
    await comm.close()


@contract
async def messages_keep_their_order_in_both_directions(end: End):
    comm = await end.pair()
    sizes = [10 ** (number % 6) for number in range(60)]

    async def write():
        for number, size in enumerate(sizes):
            await comm.write({"number": number, "x": to_serialize(np.full(size, number % 256, np.uint8))})

    async def read():
        for number, size in enumerate(sizes):
            message = await comm.read()
            assert message["number"] == number
            assert message["x"].nbytes == size
            assert (message["x"] == number % 256).all()

    await asyncio.gather(write(), read())
    await comm.close()


@contract
async def both_ends_tell_who_they_are(end: End):
    comm = await end.pair()
    theirs = await end.swap((comm.local_address, comm.peer_address))
    assert theirs == (comm.peer_address, comm.local_address)
    for address in theirs:
        assert re.fullmatch(r"mpi://127\.0\.0\.1:\d+", address)
        assert address in repr(comm)
    assert "closed" not in repr(comm)
    assert comm.same_host
    assert ("peercert" in comm.extra_info) == end.encrypted
    assert ("cipher" in comm.extra_info) == end.encrypted
    await end.gather()
    await comm.close()
    assert "closed" in repr(comm)


@contract
async def addresses_are_those_of_tcp(end: End):
    assert resolve_address("mpi://localhost:456") == "mpi://127.0.0.1:456"
    assert get_address_host("mpi://127.0.0.1:456") == "127.0.0.1"
    assert get_backend("mpi").get_local_address_for("127.0.0.1:456") == "127.0.0.1"
    async with listen("mpi://", print, **end.listen_args) as listener:
        assert listener.listen_address.startswith("mpi://0.0.0.0:")
        host, port = parse_host_port(listener.contact_address.removeprefix("mpi://"))
        assert host != "0.0.0.0"  # noqa: S104
        assert listener.listen_address.endswith(f":{port}")


@contract
async def a_process_can_listen_on_many_ports(end: End):
    listeners = [await listen("mpi://127.0.0.1", print, **end.listen_args) for _ in range(50)]
    assert len({listener.listen_address for listener in listeners}) == 50
    assert len({listener.contact_address for listener in listeners}) == 50
    for listener in listeners:
        listener.stop()


@contract
async def many_connect_at_once(end: End):
    async with end.listener() as (listener, comms):
        address = await end.swap(listener.contact_address)

        async def ask(number):
            comm = await end.connect(address)
            await comm.write({"data": number})
            assert await comm.read() == {"data": number + 1}
            await comm.close()

        async def answer():
            comm = await comms.get()
            message = await comm.read()
            await comm.write({"data": message["data"] + 1})
            with pytest.raises(CommClosedError):
                await comm.read()
            await comm.close()

        await asyncio.gather(*map(ask, range(20)), *[answer() for _ in range(20)])
        await end.gather()


@contract
async def a_closed_connection_refuses_everything_on_both_sides(end: End):
    comm = await end.pair()
    reading = asyncio.ensure_future(comm.read())
    await end.gather()
    if end.left:
        # the read has begun
        await asyncio.sleep(0)
        await comm.close()
    with pytest.raises(CommClosedError):
        await reading
    assert comm.closed()
    for _ in range(2):
        with pytest.raises(CommClosedError):
            await comm.read()
        with pytest.raises(CommClosedError):
            await comm.write({})
        await comm.close()
    comm.abort()


@contract
async def what_was_written_before_close_arrives(end: End):
    comm = await end.pair()
    data = np.arange(3_000_000)
    if end.left:
        await comm.write({"small": 1})
        await comm.write({"x": to_serialize(data)})
        await comm.write({"small": 2})
        closing = comm.close()
        assert comm.closed()
        await closing
    else:
        assert await comm.read() == {"small": 1}
        np.testing.assert_array_equal((await comm.read())["x"], data)
        assert await comm.read() == {"small": 2}
        with pytest.raises(CommClosedError):
            await comm.read()
        await comm.close()


@contract
async def a_cancelled_read_closes_the_connection(end: End):
    comm = await end.pair()
    if end.left:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await comm.read()
        assert comm.closed()
    else:
        with pytest.raises(CommClosedError):
            await comm.read()
    await comm.close()


@contract
async def an_aborted_connection_ends_at_once_on_both_sides(end: End):
    comm = await end.pair()
    if end.left:
        comm.abort()
        assert comm.closed()
    with pytest.raises(CommClosedError):
        await comm.read()
    comm.abort()
    await comm.close()


@contract
async def messages_stay_serialized_where_nobody_wants_their_content(end: End):
    noise = np.random.default_rng(0).bytes(1 << 21)
    sent = {"x": noise, "object": to_serialize(noise), "ready": Serialized(*serialize(noise))}
    for wanted in (True, False):
        comm = await end.pair(deserialize=wanted)
        if end.left:
            await comm.write(sent)
        received = await comm.read()
        if not end.left:
            # send back what was received
            await comm.write(received)
        assert received["x"] == noise
        for key in ("object", "ready"):
            value = received[key]
            assert isinstance(value, Serialized) != wanted
            assert bytes(value if wanted else deserialize(value.header, value.frames)) == noise
        del value, received
        await end.gather()
        await comm.close()


def _cut_off():
    raise EOFError


class CutOff:
    def __reduce__(self):
        return _cut_off, ()


@contract
async def a_message_that_is_cut_off_closes_the_connection(end: End):
    comm = await end.pair()
    if end.left:
        await comm.write({"x": to_serialize(CutOff())})
    with pytest.raises(CommClosedError):
        await comm.read()
    assert comm.closed()
    await comm.close()


class Unspeakable:
    def __reduce__(self):
        raise TypeError("not to be pickled")


@contract
async def what_cannot_be_serialized_leaves_the_connection_as_it_was(end: End):
    comm = await end.pair()
    if end.left:
        with pytest.raises(TypeError):
            await comm.write({"x": to_serialize(Unspeakable())}, on_error="raise")
        await comm.write({"x": 1})
    else:
        assert await comm.read() == {"x": 1}
    await end.gather()
    await comm.close()


@contract
async def arrays_of_a_message_share_no_memory(end: End):
    comm = await end.pair()
    if end.left:
        await comm.write([to_serialize(np.arange(size)) for size in (10, 10, 1_000, 100_000, 100_000)])
    else:
        arrays = await comm.read()
        for number, array in enumerate(arrays):
            assert array.flags.writeable
            array[:] = number
        assert [set(array) for array in arrays] == [{number} for number in range(5)]
        del array, arrays
    await end.gather()
    await comm.close()


@contract
async def nobody_answers_where_nobody_listens(end: End):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(OSError, match="Timed out"):
        await end.connect(f"mpi://127.0.0.1:{port}", timeout=0.2)
    assert time.monotonic() - began > 0.1


@contract
async def a_listener_that_stops_lets_go_of_who_is_shaking_hands(end: End):
    async with end.listener() as (listener, comms):
        host, port = listener.get_host_port()
        reader, writer = await asyncio.open_connection(host, port, ssl=end.connect_args.get("ssl_context"))
        assert await reader.readexactly(8)
    # as a server of distributed does
    listener.abort_handshaking_comms()
    # whatever else it has said, this is its end
    await reader.read()
    writer.close()
    await writer.wait_closed()
    assert comms.empty()


@contract
async def a_connection_that_the_listener_has_not_looked_at_ends_with_it(end: End):
    async with end.listener() as (listener, comms):
        handle = listener.tcp_server.handle_stream

        async def stop_before(stream, address):
            listener.stop()
            await handle(stream, address)

        listener.tcp_server.handle_stream = stop_before
        with pytest.raises(CommClosedError):
            await end.connect(listener.contact_address)
    assert comms.empty()
