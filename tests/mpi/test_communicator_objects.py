"""Messages, and operations on objects, come to what they come to with mpi4py's own communicator."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.two_ways import communicators, same
from support.world import on_ranks

if TYPE_CHECKING:
    from support.ends import End


def _next(comm: Any) -> int:
    return (comm.rank + 1) % comm.size


def _before(comm: Any) -> int:
    return (comm.rank - 1) % comm.size


def _object(comm: Any) -> Any:
    return {"rank": comm.rank, "none": None, "block": np.arange(comm.rank * 1000)}


@on_ranks
async def test_collective_operations_on_objects(end: End):
    from mpi4py import MPI

    await same(
        end,
        {
            "barrier": lambda c: c.barrier(),
            "bcast": lambda c: c.bcast(_object(c), root=1),
            "bcast of None": lambda c: c.bcast(None),
            "gather": lambda c: c.gather(_object(c), root=1),
            "scatter": lambda c: c.scatter([_object(c)] * c.size if c.rank == 1 else None, root=1),
            "scatter of nothing": lambda c: c.scatter(None),
            "allgather": lambda c: c.allgather(_object(c)),
            "alltoall": lambda c: c.alltoall([(c.rank, other) for other in range(c.size)]),
            "alltoall of too few": lambda c: c.alltoall([]),
            "reduce": lambda c: c.reduce(c.rank + 0.1),
            "reduce to another": lambda c: c.reduce([c.rank], root=1),
            "reduce by a function": lambda c: c.reduce(f"{c.rank}", lambda one, other: f"({one}{other})"),
            "allreduce": lambda c: c.allreduce(c.rank * 0.1 + 0.7),
            "allreduce by MAX": lambda c: c.allreduce(c.rank, op=MPI.MAX),
            "allreduce by MINLOC": lambda c: c.allreduce((c.rank % 2, c.rank), op=MPI.MINLOC),
            "allreduce of arrays": lambda c: c.allreduce(np.arange(3) * c.rank),
            "scan": lambda c: c.scan(c.rank * 0.1 + 0.7),
            "scan by a function": lambda c: c.scan(f"{c.rank}", lambda one, other: f"({one}{other})"),
            "exscan": lambda c: c.exscan(c.rank * 0.1 + 0.7),
            "exscan by a function": lambda c: c.exscan(f"{c.rank}", lambda one, other: f"({one}{other})"),
            "bcast of a function": lambda c: type(c.bcast(len)),
        },
    )


@on_ranks
async def test_an_operation_may_change_what_it_is_given(end: End):
    def add(one: list[int], other: list[int]) -> list[int]:
        one += other
        return one

    def case(comm: Any) -> Any:
        mine = [comm.rank]
        return comm.allreduce(mine, add), comm.scan(mine, add), comm.exscan(mine, add), mine

    await same(end, {"add in place": case})


@on_ranks
async def test_messages_of_buffers_and_of_objects(end: End):  # noqa: C901, PLR0915  (a list of cases)
    from mpi4py import MPI

    def ring(send: str, message: Any, target: Any) -> Any:
        def case(comm: Any) -> Any:
            status, got = MPI.Status(), target()
            request = comm.Irecv(got, _before(comm), 7)
            comm.Barrier()  # Rsend wants to be expected
            getattr(comm, send)(message(comm), _next(comm), 7)
            request.Wait(status)
            return bytes(memoryview(got).cast("B")), status.source, status.tag, status.count

        return case

    def receive(comm: Any) -> Any:
        status, got = MPI.Status(), np.zeros(4)
        request = comm.Isend([np.full(3, float(comm.rank)), MPI.DOUBLE], _next(comm), tag=comm.rank)
        comm.Recv(got, status=status)
        request.wait()
        return got, status.source, status.tag, status.Get_count(MPI.DOUBLE)

    def exchange(comm: Any) -> Any:
        status, got = MPI.Status(), bytearray(8)
        comm.Sendrecv(bytes([comm.rank] * 5), _next(comm), 3, got, _before(comm), MPI.ANY_TAG, status)
        return got, status.tag, status.count

    def replace(comm: Any) -> Any:
        numbers = np.arange(4) * comm.rank
        comm.Sendrecv_replace(numbers, dest=_next(comm), source=_before(comm))
        return numbers

    every_second = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    backwards = MPI.DOUBLE.Create_indexed([1, 1], [1, 0]).Commit()

    def replace_some(comm: Any) -> Any:
        status, pairs = MPI.Status(), np.array([(comm.rank, 1, 0), (2, comm.rank, 0)], "d,i4,i4")
        received: list[Any] = [pairs]
        comm.Sendrecv_replace([pairs, 2, MPI.DOUBLE_INT], dest=_next(comm), source=_before(comm))
        for kind, count in ((every_second, (2, 1)), (every_second, 0), (backwards, 4), (every_second, -1)):
            numbers = np.arange(20.0) + 100 * comm.rank
            received.append(numbers)
            with contextlib.suppress(ValueError):
                comm.Sendrecv_replace([numbers, count, kind], _next(comm), 4, _before(comm), status=status)
            received += [status.tag, status.Get_count(kind)]
        return received

    def probe(comm: Any) -> Any:
        status, more = MPI.Status(), MPI.Status()
        request = comm.isend(_object(comm), _next(comm), 5)
        found = comm.Probe(status=status), comm.probe(_before(comm), 5, status=more)
        got = comm.recv()
        request.wait()
        return found, status.count, more.source, got

    def matched(comm: Any) -> Any:
        requests = [comm.Isend(np.full(2, comm.rank), _next(comm)), comm.isend(_object(comm), _next(comm), 1)]
        got = np.zeros(2, int)
        comm.Mprobe(tag=0).Recv(got)
        obj = comm.mprobe(tag=1).recv()
        MPI.Request.Waitall(requests)
        return got, obj

    def matched_later(comm: Any) -> Any:
        requests = [comm.Isend(np.full(2, comm.rank), _next(comm)), comm.isend(_object(comm), _next(comm), 1)]
        got = np.zeros(2, int)
        comm.Mprobe(tag=0).Irecv(got).Wait()
        obj = comm.mprobe(tag=1).irecv().wait()
        requests[0].Waitall(requests)
        return got, obj

    def objects(send: str) -> Any:
        def case(comm: Any) -> Any:
            if comm.rank % 2:
                status = MPI.Status()
                return comm.recv(source=comm.rank - 1, tag=2, status=status), status.count
            return getattr(comm, send)(_object(comm), comm.rank + 1, tag=2)

        return case

    def buffered(comm: Any) -> Any:
        space = bytearray(10_000 + MPI.BSEND_OVERHEAD)
        MPI.Attach_buffer(space)
        comm.Bsend(np.arange(3), _next(comm))
        comm.bsend("text", _next(comm), 1)
        got = np.zeros(3, int)
        comm.Recv(got, tag=0)
        text = comm.recv(tag=1)
        MPI.Detach_buffer()
        return got, text

    def nobody(comm: Any) -> Any:
        status, got = MPI.Status(), np.ones(2)
        comm.Send(got, MPI.PROC_NULL)
        comm.Recv(got, MPI.PROC_NULL, status=status)
        comm.Sendrecv(got, MPI.PROC_NULL, recvbuf=got, source=MPI.PROC_NULL)
        found = comm.recv(source=MPI.PROC_NULL), comm.sendrecv("x", MPI.PROC_NULL, source=MPI.PROC_NULL)
        return got, status.source == MPI.PROC_NULL, found, comm.Mprobe(MPI.PROC_NULL).recv()

    def swap(comm: Any) -> Any:
        status = MPI.Status()
        return comm.sendrecv(_object(comm), _next(comm), 4, source=_before(comm), status=status), status.tag

    small, large = (lambda c: bytes([c.rank] * 9)), (lambda c: np.full(300_000, float(c.rank)))
    cases = {f"{send} of few": ring(send, small, lambda: bytearray(9)) for send in ("Send", "Ssend", "Rsend")}
    cases |= {f"{send} of many": ring(send, large, lambda: np.zeros(300_000)) for send in ("Send", "Ssend")}
    cases |= {send: objects(send) for send in ("send", "ssend")}
    others = (receive, exchange, replace, replace_some, probe, matched, matched_later, buffered, nobody, swap)
    await same(end, cases | {each.__name__: each for each in others})


@on_ranks
async def test_requests_wait_for_one_for_some_and_for_all(end: End):  # noqa: C901  (a list of cases)
    from mpi4py import MPI

    def posted(comm: Any, number: int = 3) -> tuple[list[Any], list[Any]]:
        got = [np.zeros(2) for _ in range(number)]
        receives = [comm.Irecv(each, _before(comm), tag) for tag, each in enumerate(got)]
        sends = [comm.Isend(np.full(2, comm.rank + tag / 10), _next(comm), tag) for tag in range(number)]
        return receives + sends, got

    def objects(comm: Any) -> list[Any]:
        return [comm.irecv(source=_before(comm), tag=1), comm.isend(_object(comm), _next(comm), 1)]

    def all_at_once(comm: Any) -> Any:
        requests, got = posted(comm)
        statuses = [MPI.Status() for _ in requests]
        return requests[0].Waitall(requests, statuses), got, [status.tag for status in statuses[:3]]

    def one_after_the_other(comm: Any) -> Any:
        requests, got = posted(comm)
        done = sorted(requests[0].Waitany(requests) for _ in requests)
        return done, requests[0].Waitany(requests) == MPI.UNDEFINED, got

    def some(comm: Any) -> Any:
        requests, got = posted(comm)
        done: list[int] = []
        while len(done) < len(requests):
            done += requests[0].Waitsome(requests)
        return sorted(done), requests[0].Waitsome(requests), got

    def objects_at_once(comm: Any) -> Any:
        requests = objects(comm)
        return requests[0].waitall(requests)

    def any_object(comm: Any) -> Any:
        requests = objects(comm)
        return sorted((requests[0].waitany(requests) for _ in requests), key=lambda found: found[0])

    def some_objects(comm: Any) -> Any:
        requests, done = objects(comm), {}
        while len(done) < len(requests):
            done |= dict(zip(*requests[0].waitsome(requests), strict=True))
        return done[0], requests[0].waitsome(requests)

    def one_object(comm: Any) -> Any:
        receive, send = objects(comm)
        return receive.wait(), send.wait(), receive.wait()

    def collective(comm: Any) -> Any:
        got = np.zeros(2)
        requests = [comm.Iallreduce(np.ones(2), got), comm.Ibarrier()]
        return requests[0].Wait(), requests[1].Test() or requests[1].Wait(), got

    def persistent(comm: Any) -> Any:
        got = np.zeros(2)
        requests = [comm.Recv_init(got, _before(comm)), comm.Send_init(np.full(2, comm.rank), _next(comm))]
        seen = []
        for _ in range(3):
            requests[0].Startall(requests)
            requests[0].Waitall(requests)
            seen.append(got.copy())
        for request in requests:
            request.Free()
        return seen

    cases = (all_at_once, one_after_the_other, some, objects_at_once, any_object, some_objects, one_object)
    await same(end, {each.__name__: each for each in (*cases, collective, persistent)})


@on_ranks
async def test_a_buffer_for_an_object_is_deprecated_as_it_is_in_mpi4py(end: End):
    _, comm = communicators()
    comm.isend("an object", comm.rank)
    with pytest.warns(UserWarning, match="deprecated"):
        assert comm.recv(bytearray(1000), comm.rank) == "an object"
