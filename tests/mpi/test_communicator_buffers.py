"""Operations on buffers give the results of mpi4py's own communicator, however the buffers are specified."""

from __future__ import annotations

import gc
import os
from array import array
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import psutil
from support.two_ways import Case, communicators, same
from support.world import on_ranks

if TYPE_CHECKING:
    from support.ends import End

KINDS = ("Allreduce", "Reduce", "Scan", "Exscan")


def _numbers(comm: Any, length: int = 6) -> Any:
    return np.arange(length, dtype=float) + 10 * comm.rank


def _reduced(kind: str, send: Any, receive: Any, **options: Any) -> Case:
    """Make a case of a reduction: `send` and `receive` return, of a communicator, what is given to it."""

    def case(comm: Any) -> Any:
        sent, (told, target) = send(comm), receive(comm)
        getattr(comm, kind)(sent, told, **options)
        if comm.rank == 0 and kind == "Exscan":
            return None  # undefined
        return target if kind != "Reduce" or comm.rank == options.get("root", 0) else None

    return case


def _told(tell: Any = lambda target: target, dtype: Any = float, length: int = 6) -> Any:
    def receive(comm: Any) -> Any:
        target = np.zeros(length, dtype)
        return tell(target), target

    return receive


@on_ranks
async def test_reductions_of_all_forms_of_buffers(end: End):
    from mpi4py import MPI

    doubles = MPI.DOUBLE
    forms = {
        "arrays": (_numbers, _told()),
        "array and type": (lambda c: [_numbers(c), doubles], _told(lambda t: (t, doubles))),
        "array and code": (lambda c: (_numbers(c), "d"), _told(lambda t: [t, "d"])),
        "array and count": (lambda c: [_numbers(c), 6], _told(lambda t: [t, 6])),
        "count and type": (lambda c: [_numbers(c), 4, doubles], _told(lambda t: [t, 4, doubles])),
        "displacement": (lambda c: [_numbers(c), 3, 2, doubles], _told(lambda t: [t, (3, 1), doubles])),
        "memoryview": (lambda c: memoryview(_numbers(c)), _told(memoryview)),
        "array.array": (lambda c: array("d", _numbers(c)), _told()),
        "two dimensions": (lambda c: _numbers(c).reshape(2, 3), _told(lambda t: t.reshape(2, 3))),
        "columns": (lambda c: np.asfortranarray(_numbers(c).reshape(2, 3)), _told()),
        "empty": (lambda c: _numbers(c, 0), _told(length=0)),
        "integers": (lambda c: np.arange(6) * c.rank, _told(dtype=int)),
        "complex": (lambda c: _numbers(c) * 1j, _told(dtype=complex)),
    }
    # what is refused on each rank, and sent by none
    wrong = {
        "too long": (lambda c: _numbers(c, 7), _told()),
        "no buffer": (lambda _: "six", _told()),
        "objects": (lambda c: _numbers(c).astype(object), _told()),
    }
    cases = {f"{kind} of {name}": _reduced(kind, *form) for kind in KINDS for name, form in forms.items()}
    await same(end, cases | {name: _reduced("Allreduce", *form) for name, form in wrong.items()})


@on_ranks
async def test_reductions_with_other_operations(end: End):
    from mpi4py import MPI

    def largest(one: Any, other: Any, _type: Any) -> None:
        found = np.frombuffer(other)
        np.maximum(np.frombuffer(one), found, out=found)

    own = MPI.Op.Create(largest, commute=True)
    cases = {}
    for kind in KINDS:
        for op in (MPI.MAX, MPI.PROD, own):
            cases[f"{kind} {op}"] = _reduced(kind, _numbers, _told(), op=op)
    cases["Reduce to the last"] = _reduced("Reduce", _numbers, _told(), root=1)
    cases["land"] = _reduced("Allreduce", lambda c: np.array([c.rank, 1]), _told(dtype=int, length=2), op=MPI.LAND)
    await same(end, cases)
    own.Free()


@on_ranks
async def test_reductions_in_place(end: End):
    from mpi4py import MPI

    def case(kind: str, length: int) -> Case:
        def reduce(comm: Any) -> Any:
            buffer = _numbers(comm, length)
            if kind == "Reduce" and comm.rank:
                comm.Reduce(buffer, None)
            else:
                getattr(comm, kind)(MPI.IN_PLACE, buffer)
            return None if kind == "Exscan" and comm.rank == 0 else buffer

        return reduce

    await same(end, {f"{kind} of {length}": case(kind, length) for kind in KINDS for length in (6, 1_000_000)})


@on_ranks
async def test_large_messages_that_ranks_tell_in_different_ways(end: End):
    from mpi4py import MPI

    length = 600_000
    pairs = MPI.DOUBLE.Create_contiguous(2).Commit()

    def buffer(comm: Any, fill: float) -> Any:
        numbers = np.full(length, fill)
        ways = [numbers, [numbers, MPI.DOUBLE], (numbers, length, "d"), [memoryview(numbers), length, 0, MPI.DOUBLE]]
        return ways[comm.rank % 4], numbers

    def bcast(comm: Any) -> Any:
        told, numbers = buffer(comm, comm.rank)
        comm.Bcast([numbers, length // 2, pairs] if comm.rank == 1 else told, root=comm.size - 1)
        return numbers

    def reduction(kind: str, *options: Any) -> Case:
        def case(comm: Any) -> Any:
            (sent, _), (told, numbers) = buffer(comm, comm.rank + 1.0), buffer(comm, 0.0)
            getattr(comm, kind)(sent, told, *options)
            return None if kind == "Exscan" and comm.rank == 0 else numbers

        return case

    def blocks(kind: str) -> Case:
        def case(comm: Any) -> Any:
            whole = length // comm.size * comm.size
            sent = np.full(whole if kind == "Alltoall" else whole // comm.size, float(comm.rank))
            got = np.zeros(whole)
            getattr(comm, kind)(sent if comm.rank else [sent, MPI.DOUBLE], got)
            return got

        return case

    cases = {"Bcast": bcast, "Reduce": reduction("Reduce", MPI.SUM, 1), "Allgather": blocks("Allgather")}
    cases |= {"Alltoall": blocks("Alltoall"), "Maximum": reduction("Allreduce", MPI.MAX)}
    cases |= {kind: reduction(kind) for kind in KINDS if kind != "Reduce"}
    await same(end, cases)
    pairs.Free()


class Tensor:
    """Gives its numbers by DLPack alone, as a tensor of PyTorch or JAX does."""

    def __init__(self, numbers: Any) -> None:
        self._numbers, self.itemsize = numbers, numbers.itemsize

    def __dlpack__(self, **options: Any) -> Any:
        return self._numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._numbers.__dlpack_device__()


@on_ranks
async def test_large_messages_by_dlpack_beside_those_of_numpy(end: End):
    from mpi4py import MPI

    forms: dict[str, Any] = {
        "tensor": lambda _: Tensor,
        "tensor and type": lambda _: lambda numbers: [Tensor(numbers), MPI.DOUBLE],
        "tensor and count": lambda _: lambda numbers: [Tensor(numbers), len(numbers)],
        "tensor at rank 1": lambda comm: Tensor if comm.rank == 1 else np.asarray,
        "tensors but for rank 1": lambda comm: np.asarray if comm.rank == 1 else Tensor,
        "tensor and count at rank 1": lambda comm: (
            (lambda numbers: [Tensor(numbers), len(numbers)]) if comm.rank == 1 else np.asarray
        ),
    }

    def bcast(form: Any, length: int, root: int) -> Case:
        def case(comm: Any) -> Any:
            numbers = _numbers(comm, length)
            comm.Bcast(form(comm)(numbers), root)
            return numbers

        return case

    def reduce(form: Any, length: int) -> Case:
        def case(comm: Any) -> Any:
            target = np.zeros(length)
            comm.Allreduce(form(comm)(_numbers(comm, length)), form(comm)(target))
            return target

        return case

    # 4 MiB are large, and a number less is not
    lengths = (524_287, 524_288, 600_000)
    cases = {
        f"Bcast of {length} from {root}, {name}": bcast(form, length, root)
        for name, form in forms.items()
        for length in lengths
        for root in (0, 1)
    }
    await same(end, cases | {f"Allreduce, {name}": reduce(form, 600_000) for name, form in forms.items()})


@on_ranks
async def test_large_messages_that_all_ranks_tell_alike(end: End):
    def bcast(comm: Any) -> Any:
        numbers = np.full(600_000, comm.rank)
        comm.Bcast(numbers, 1)
        return numbers

    def gather(comm: Any) -> Any:
        got = np.zeros((comm.size, 600_000), dtype=np.float32)
        comm.Allgather(np.full(600_000, comm.rank, dtype=np.float32), got)
        return got

    def exchange(comm: Any) -> Any:
        sent, got = np.arange(600_000.0) + comm.rank, np.zeros(600_000)
        comm.Alltoall(sent, got)
        return got

    large = (lambda c: _numbers(c, 600_000), _told(length=600_000))
    cases = {kind: _reduced(kind, *large) for kind in KINDS}
    await same(end, cases | {"Bcast": bcast, "Allgather": gather, "Alltoall": exchange})


def _until_shared(reductions: int) -> Any:
    return mock.patch("workbench.mpi.collectives._UNTIL_SHARED", reductions)


def _scattered(large: dict[Any, int]) -> dict[str, Case]:
    from mpi4py import MPI

    cases = {}

    def scattered(dtype: Any, length: int, op: Any) -> Case:
        def case(comm: Any) -> Any:
            got = np.zeros(length, dtype)
            comm.Reduce_scatter_block((_numbers(comm, length * comm.size) % 40).astype(dtype), got, op)
            return got

        return case

    for dtype, length in large.items():
        cases[f"a part of {dtype}"] = scattered(dtype, length, MPI.SUM)
    cases["a part of the largest"] = scattered(float, 70_001, MPI.MAX)

    def scattered_in_place(comm: Any) -> Any:
        numbers = _numbers(comm, 60_000 * comm.size)
        comm.Reduce_scatter_block(MPI.IN_PLACE, numbers)
        return numbers[:60_000]

    def in_place_of_different_forms(comm: Any) -> Any:
        # The array alone has 256 KiB or more, and a part has less.
        numbers = _numbers(comm, 20_000 * comm.size)
        comm.Reduce_scatter_block(MPI.IN_PLACE, [numbers, 20_000, MPI.DOUBLE] if comm.rank else numbers)
        return numbers[:20_000]

    cases |= {"a part in place": scattered_in_place, "in place of different forms": in_place_of_different_forms}
    return cases


def _refused() -> dict[str, Case]:
    from mpi4py import MPI

    def not_defined(op: Any, dtype: Any) -> Case:
        def case(comm: Any) -> Any:
            numbers, got = _numbers(comm, 70_000).astype(dtype), np.zeros(70_000, dtype)
            try:
                comm.Allreduce(numbers, got, op)
            except MPI.Exception:
                return "refused"
            return got

        return case

    return {
        "bits of float": not_defined(MPI.BAND, float),
        "bits of integers": not_defined(MPI.BAND, int),
        "the largest complex": not_defined(MPI.MAX, complex),
    }


async def _same_on_one_node(end: End) -> bool:
    from mpi4py import MPI

    # more than one reduction takes, and parts that are not equal
    large = {np.dtype(kind): 400_001 // np.dtype(kind).itemsize for kind in ("b", "i4", "u8", "f4", "f8", "c16")}
    cases = {
        f"{op} of {dtype}": _reduced(
            "Allreduce",
            lambda c, of=of: (_numbers(c, of[1]) % 40).astype(of[0]),
            _told(dtype=of[0], length=of[1]),
            op=op,
        )
        for dtype, of in ((str(dtype), (dtype, length)) for dtype, length in large.items())
        for op in ((MPI.SUM,) if dtype == "complex128" else (MPI.SUM, MPI.MAX))
    }

    def in_place(comm: Any) -> Any:
        numbers = _numbers(comm, 100_000)
        comm.Allreduce(None, numbers)  # as MPI.IN_PLACE
        return numbers

    cases["None"] = in_place
    cases["in another type on rank 1"] = _reduced(
        "Allreduce",
        lambda c: [_numbers(c, 100_000), MPI.DOUBLE] if c.rank == 1 else _numbers(c, 100_000),
        _told(length=100_000),
    )
    cases["None again"] = in_place

    cases |= _scattered(large) | _refused()
    cases["after them"] = in_place
    shared = []

    def is_shared(comm: Any) -> None:
        shared.append(getattr(comm, "shared_reduction", None) is not None)
        comm.Barrier()

    await same(end, cases | {"memory": is_shared})
    return any(shared)


@on_ranks
async def test_an_allreduce_on_one_node_in_parts_of_any_length_and_type(end: End):
    with mock.patch("workbench.mpi.shared_reduction._AT_ONCE", 300_000), _until_shared(-1):
        assert not await _same_on_one_node(end)


@on_ranks
async def test_an_allreduce_through_shared_memory_of_any_length_and_type(end: End):
    with mock.patch("workbench.mpi.shared_reduction._PIECE", 48_000), _until_shared(1):
        assert await _same_on_one_node(end)


@on_ranks
async def test_ranks_share_memory_after_three_large_reductions_and_a_call_that_has_ended_keeps_none(end: End):
    from workbench.mpi import shared_reduction

    def shared(times: int) -> list[bool]:
        plain, comm = communicators()
        plain.Free()
        found = []
        for _ in range(times):
            numbers = np.full(40_000, comm.rank + 1.0)
            comm.Allreduce(None, numbers)
            assert set(numbers) == {comm.size * (comm.size + 1) / 2}
            found.append(comm.shared_reduction is not None)
        comm.release_memory()
        return found

    shared(4)
    gc.collect()
    before = psutil.Process().num_fds()
    assert shared(5) == [False, False, True, True, True]
    gc.collect()
    assert psutil.Process().num_fds() <= before
    await end.gather()

    # of a rank that sees other numbers of processes
    with mock.patch.object(shared_reduction, "open_memory", return_value=None):
        assert shared(4) == [False] * 4
    nowhere = np.array([os.getpid(), 10_000, 1])
    assert shared_reduction.open_memory(nowhere, 8192) is None
    other = os.memfd_create("another")
    os.ftruncate(other, 8192)
    assert shared_reduction.open_memory(np.array([os.getpid(), other, 1]), 8192) is None
    os.close(other)
    await end.gather()


@on_ranks
async def test_blocks_and_vectors(end: End):  # noqa: C901  (a list of cases)
    from mpi4py import MPI

    def case(method: str, *, root: bool = False, send: Any, receive: Any) -> Case:
        def call(comm: Any) -> Any:
            sent, (told, target) = send(comm), receive(comm)
            getattr(comm, method)(sent, told, **({"root": 1} if root else {}))
            return target

        return call

    def uneven(comm: Any) -> Any:
        counts = [rank + 1 for rank in range(comm.size)]
        return counts, [sum(counts[:rank]) for rank in range(comm.size)], sum(counts)

    def vector(target_of: Any) -> Any:
        def receive(comm: Any) -> Any:
            counts, offsets, total = uneven(comm)
            target = np.zeros(total)
            return target_of(target, counts, offsets), target

        return receive

    def at_root(receive: Any) -> Any:
        return lambda comm: receive(comm) if comm.rank == 1 else (None, None)

    def matrix(comm: Any) -> Any:
        target = np.zeros((comm.size, 2))
        return target, target

    def pair(_: Any) -> Any:
        target = np.zeros(2)
        return target, target

    one = lambda comm: np.full(2, comm.rank + 0.5)  # noqa: E731
    own = lambda comm: np.full(comm.rank + 1, comm.rank + 0.5)  # noqa: E731
    filled = lambda comm: np.arange(2.0 * comm.size) + 100 * comm.rank  # noqa: E731
    forms = [
        lambda t, counts, _: [t, counts],
        lambda t, counts, offsets: [t, (counts, offsets)],
        lambda t, counts, _: [t, counts, MPI.DOUBLE],
        lambda t, counts, offsets: [t, counts, offsets, MPI.DOUBLE],
    ]
    cases = {
        "Allgather": case("Allgather", send=one, receive=matrix),
        "Gather": case("Gather", root=True, send=one, receive=at_root(matrix)),
        "Scatter": case("Scatter", root=True, send=lambda c: filled(c) if c.rank == 1 else None, receive=pair),
        "Alltoall": case("Alltoall", send=filled, receive=matrix),
        "Reduce_scatter_block": case("Reduce_scatter_block", send=filled, receive=pair),
        "Reduce_scatter": case("Reduce_scatter", send=filled, receive=pair),
        "Scatter of the wrong length": case("Scatter", send=lambda _: np.zeros(1), receive=lambda _: ("no", None)),
    }
    for number, form in enumerate(forms):
        cases[f"Allgatherv {number}"] = case("Allgatherv", send=own, receive=vector(form))
        cases[f"Gatherv {number}"] = case("Gatherv", root=True, send=own, receive=at_root(vector(form)))

    def scatterv(comm: Any) -> Any:
        counts, offsets, total = uneven(comm)
        got = np.zeros(comm.rank + 1)
        comm.Scatterv([np.arange(float(total)), (counts, offsets)] if comm.rank == 0 else None, got)
        return got

    def alltoallv(comm: Any) -> Any:
        counts = [comm.rank + 1] * comm.size
        got = np.zeros(sum(range(1, comm.size + 1)))
        comm.Alltoallv([np.full(sum(counts), float(comm.rank)), counts], [got, uneven(comm)[0]])
        return got

    def alltoallw(comm: Any) -> Any:
        ones, places = [1] * comm.size, [8 * rank for rank in range(comm.size)]
        got = np.zeros(comm.size)
        types = [MPI.DOUBLE] * comm.size
        comm.Alltoallw([np.full(comm.size, float(comm.rank)), (ones, places), types], [got, (ones, places), types])
        return got

    def barrier(comm: Any) -> Any:
        return comm.Barrier()

    await same(end, cases | {each.__name__: each for each in (scatterv, alltoallv, alltoallw, barrier)})
