"""Operations of all ranks, and of neighbors, with what they send: by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.counting import AROUND, LATER, OTHERS, RANKS, RING, Case, Messages, both, of, pickled, text, times, z


def buffers() -> dict[str, tuple[Callable[[Any], tuple[Any, ...]], Messages]]:
    from mpi4py import MPI

    types, sizes = [MPI.BYTE, MPI.INT, MPI.DOUBLE, MPI.C_DOUBLE_COMPLEX], [1, 4, 8, 16]

    def at(comm: Any, root: int, buffer: Any) -> Any:
        return buffer if comm.rank == root else None

    def alltoallw(comm: Any) -> tuple[Any, ...]:
        ones, places = [1] * 4, [0, 16, 32, 48]
        return [bytearray(64), (ones, places), types], [bytearray(64), (ones, places), [types[comm.rank]] * 4]

    return {
        "Barrier": (lambda _: (), {}),
        "Bcast": (lambda _: (z(5), 2), of([(2, 0), (2, 1), (2, 3)], 40)),
        "Gather": (lambda c: (z(3), at(c, 1, z(12)), 1), of([(0, 1), (2, 1), (3, 1)], 24)),
        "Gatherv": (
            lambda c: (z(c.rank), at(c, 3, [z(6), [0, 1, 2, 3]]), 3),
            {(0, 3): [0], (1, 3): [8], (2, 3): [16]},
        ),
        "Scatter": (lambda c: (at(c, 3, z(8, "f4")), z(2, "f4"), 3), of([(3, 0), (3, 1), (3, 2)], 8)),
        "Scatterv": (
            lambda c: (at(c, 1, [z(7), ([4, 1, 0, 2], [3, 2, 0, 0])]), z([4, 1, 0, 2][c.rank]), 1),
            {(1, 0): [32], (1, 2): [0], (1, 3): [16]},
        ),
        "Allgather": (lambda _: (z(2), z(8)), of(OTHERS, 16)),
        "Allgatherv": (
            lambda c: (z(c.rank + 1), [z(20), ([1, 2, 3, 4], [0, 5, 10, 15])]),
            of(OTHERS, lambda source, _: [8, 16, 24, 32][source]),
        ),
        "Alltoall": (lambda _: (z(12, "f4"), z(12, "f4")), of(OTHERS, 12)),
        "Alltoallv": (
            lambda c: ([z(6), [0, 1, 2, 3]], [z(4 * c.rank), [c.rank] * 4]),
            of(OTHERS, lambda _, target: [0, 8, 16, 24][target]),
        ),
        "Alltoallw": (alltoallw, of(OTHERS, lambda _, target: sizes[target])),
        "Reduce": (lambda c: (z(7), at(c, 2, z(7)), MPI.SUM, 2), of([(0, 2), (1, 2), (3, 2)], 56)),
        "Allreduce": (lambda _: (z(9), z(9)), of(OTHERS, 72)),
        "Reduce_scatter_block": (lambda _: (z(8), z(2)), of(OTHERS, 16)),
        "Reduce_scatter": (
            lambda c: (z(10), z(c.rank + 1), [1, 2, 3, 4]),
            of(OTHERS, lambda _, target: [8, 16, 24, 32][target]),
        ),
        "Scan": (lambda _: (z(3), z(3)), of(LATER, 24)),
        "Exscan": (lambda _: (z(5, "f4"), z(5, "f4")), of(LATER, 20)),
    }


def neighbors() -> dict[str, tuple[Callable[[Any], tuple[Any, ...]], Messages]]:
    """Of a ring, whose ranks have the one before and the next."""
    from mpi4py import MPI

    def vector(comm: Any) -> list[int]:
        return [[4, 2], [1, 3], [2, 4], [3, 1]][comm.rank]

    small, large = MPI.INT, MPI.DOUBLE
    back = [(0, 3), (1, 0), (2, 1), (3, 2)]
    return {
        "Neighbor_allgather": (lambda _: (z(3), z(6)), of(AROUND, 24)),
        "Neighbor_allgatherv": (
            lambda c: (z(c.rank + 1), [z(6), vector(c)]),
            of(AROUND, lambda source, _: [8, 16, 24, 32][source]),
        ),
        "Neighbor_alltoall": (lambda _: (z(4), z(4)), of(AROUND, 16)),
        "Neighbor_alltoallv": (lambda _: ([z(4), [1, 3]], [z(4), [3, 1]]), both(of(back, 8), of(RING, 24))),
        "Neighbor_alltoallw": (
            lambda _: (
                [bytearray(16), ([1, 1], [0, 8]), [small, large]],
                [bytearray(16), ([1, 1], [0, 8]), [large, small]],
            ),
            both(of(back, 4), of(RING, 8)),
        ),
    }


def three_ways(table: dict[str, tuple[Callable[[Any], tuple[Any, ...]], Messages]]) -> dict[str, Case]:
    """Return the blocking, the non-blocking and the persistent operations; the last are started twice."""

    def blocking(name: str, arguments: Any) -> Any:
        return lambda comm: getattr(comm, name)(*arguments(comm))

    def later(name: str, arguments: Any) -> Any:
        return lambda comm: getattr(comm, f"I{name.lower()}")(*arguments(comm)).Wait()

    def persistent(name: str, arguments: Any) -> Any:
        def run(comm: Any) -> None:
            request = getattr(comm, f"{name}_init")(*arguments(comm))
            for _ in range(2):
                request.Start()
                request.Wait()
            request.Free()

        return run

    cases: dict[str, Case] = {}
    for name, (arguments, expected) in table.items():
        cases[name] = blocking(name, arguments), expected
        cases[f"I{name.lower()}"] = later(name, arguments), expected
        cases[f"{name}_init"] = persistent(name, arguments), times(2, expected)
    return cases


def ring(comm: Any) -> Any:
    return comm.Create_cart([4], periods=[True])


def objects() -> dict[str, Case]:
    def from_source(source: int, _: int) -> int:
        return pickled(text(source))

    def to_target(_: int, target: int) -> int:
        return pickled(text(target))

    every = [text(rank) for rank in RANKS]
    return {
        "barrier": (lambda c: c.barrier(), {}),
        "bcast": (lambda c: c.bcast(text(c.rank), 3), of([(3, 0), (3, 1), (3, 2)], from_source)),
        "gather": (lambda c: c.gather(text(c.rank), 1), of([(0, 1), (2, 1), (3, 1)], from_source)),
        "scatter": (
            lambda c: c.scatter(every if c.rank == 2 else None, 2),
            of([(2, 0), (2, 1), (2, 3)], to_target),
        ),
        "allgather": (lambda c: c.allgather(text(c.rank)), of(OTHERS, from_source)),
        "alltoall": (lambda c: c.alltoall(every), of(OTHERS, to_target)),
        "reduce": (lambda c: c.reduce(text(c.rank), root=2), of([(0, 2), (1, 2), (3, 2)], from_source)),
        "allreduce": (lambda c: c.allreduce(text(c.rank)), of(OTHERS, from_source)),
        "scan": (lambda c: c.scan(text(c.rank)), of(LATER, from_source)),
        "exscan": (lambda c: c.exscan(text(c.rank)), of(LATER, from_source)),
    }


def objects_of_neighbors() -> dict[str, Case]:
    back = [(0, 3), (1, 0), (2, 1), (3, 2)]
    return {
        "neighbor_allgather": (
            lambda c: c.neighbor_allgather(text(c.rank)),
            of(AROUND, lambda source, _: pickled(text(source))),
        ),
        "neighbor_alltoall": (
            lambda c: c.neighbor_alltoall([text(4), text(5)]),
            both(of(back, pickled(text(4))), of(RING, pickled(text(5)))),
        ),
    }
