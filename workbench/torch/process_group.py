"""The process group of torch.distributed on a communicator of MPI."""
# ruff: noqa: D102  (the operations are those of torch.distributed)

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from mpi4py import MPI

from workbench.errors import InvalidRequest
from workbench.torch.buffers import array, flat, message, write
from workbench.torch.reductions import all_reduce, reduction
from workbench.torch.work import PostedMessage, completed

Tensors = list[torch.Tensor]

# Of the messages by which the ranks of a new group meet; those of torch's users have the tags that these users give.
_MEETING = 32_000


class MPIProcessGroup(dist.ProcessGroup):
    """A process group whose operations are those of a communicator.

    Parameters
    ----------
    comm
        Belongs to the group.

    Notes
    -----
    A collective operation is over when its method returns, also with ``async_op=True``: on the cores of a rank nothing
    goes on beside it. Messages between two ranks are posted.

    Torch names the operations on one tensor anew from release to release: `all_gather_single` of 2.13 was
    `_allgather_base`, and so on. Both names are there.
    """

    _parents: ClassVar[list[MPI.Intracomm]] = []

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self._place = comm.rank, comm.size
        self._comm: MPI.Intracomm | None = comm
        self._groups: list[MPIProcessGroup] = [self]

    @classmethod
    @contextmanager
    def parent(cls, comm: MPI.Intracomm) -> Iterator[None]:
        """Have the next default group take this communicator."""
        cls._parents.append(comm)
        try:
            yield
        finally:
            cls._parents.clear()

    @classmethod
    def create(cls, options: Any, _: object = None) -> MPIProcessGroup:
        """Return the default group, or a group of some of its ranks; torch calls this on these ranks only."""
        if cls._parents:
            return cls(cls._parents.pop())
        if not isinstance(dist.group.WORLD, cls):
            raise InvalidRequest(
                "the backend 'workbench' can only make groups in a block of workbench.torch.distributed(comm)."
            )
        world: MPIProcessGroup = dist.group.WORLD
        group = cls(world.part(list(options.global_ranks_in_group), str(options.group_id)))
        world._groups.append(group)
        return group

    def part(self, ranks: Sequence[int], name: str) -> MPI.Intracomm:
        """Make a communicator of some ranks, which alone call this."""
        comm, tag = self.comm, zlib.crc32(name.encode()) % _MEETING
        # What is made here cannot be ended, so the ranks wait for each other before, where they can be ended.
        first, *others = ranks
        nothing = bytearray(1)
        for way in (comm.Recv, comm.Send) if comm.rank == first else (comm.Send, comm.Recv):
            for other in others if comm.rank == first else [first]:
                way([nothing, MPI.BYTE], other, _MEETING)
        members = comm.Get_group()
        chosen = members.Incl(list(ranks))
        try:
            return comm.Create_group(chosen, tag)
        finally:
            chosen.Free()
            members.Free()

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator of the group.

        Raises
        ------
        InvalidRequest
            If the `distributed` block is over.
        """
        if self._comm is None:
            raise InvalidRequest(
                "this process group ended with its distributed() block. Use models and groups only in the block in "
                "which they were made."
            )
        return self._comm

    def free(self) -> None:
        """Free the communicators of this group and of those that were made from it; collective."""
        for group in self._groups:
            if (comm := group._comm) is not None:  # noqa: SLF001  (one class)
                comm.Free()
        self.shutdown()

    def shutdown(self) -> None:
        """Let go of the communicators; no operation is possible any more."""
        for group in self._groups:
            group._comm = None  # noqa: SLF001  (one class)

    def abort(self) -> None:
        self.shutdown()

    def rank(self) -> int:
        return self._place[0]

    def size(self) -> int:
        return self._place[1]

    def getBackendName(self) -> str:  # noqa: N802
        return "workbench"

    getRank, getSize = rank, size  # noqa: N815

    @property
    def group_name(self) -> Any:
        return dist.distributed_c10d._world.pg_names[self]  # noqa: SLF001  (as torch's own groups in Python have it)

    def __repr__(self) -> str:
        return f"MPIProcessGroup(rank {self.rank()} of {self.size()})"

    # Reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        all_reduce(self.comm, tensors, _op(opts))
        return completed(tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        for tensor in tensors:
            row = flat(tensor)
            reduction(_op(opts), tensor.dtype).to_root(self.comm, row, opts.rootRank)
            write(row, tensor)
        return completed(tensors, opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        row, part = flat(tensor), flat(output)
        if row.numel() != part.numel() * self.size():
            raise InvalidRequest(
                f"the input has {row.numel()} elements, not {self.size()} times the {part.numel()} of the output."
            )
        reduction(_op(opts), tensor.dtype).scattered(self.comm, _apart(row, part), part)
        write(part, output)
        return completed([output], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, tensors, strict=True):
            self.reduce_scatter_single(output, tensor, opts)
        return completed(outputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, lists: list[Tensors], opts: Any = None) -> Any:
        for output, tensors in zip(outputs, lists, strict=True):
            if len({tensor.shape for tensor in tensors}) == 1:
                self.reduce_scatter_single(output, torch.stack(list(tensors)), opts)
                continue
            rows = [flat(tensor) for tensor in tensors]
            whole = torch.cat(rows)
            reduction(_op(opts), whole.dtype).to_all(self.comm, whole)
            write(whole.split([row.numel() for row in rows])[self.rank()], output)
        return completed(outputs, opts)

    # One to all, all to one, all to all

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        for tensor in tensors:
            row = flat(tensor)
            self.comm.Bcast(array(row), opts.rootRank)
            write(row, tensor)
        return completed(tensors, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        gathered = flat(output)
        if gathered.numel() != tensor.numel() * self.size():
            raise InvalidRequest(
                f"the output has {gathered.numel()} elements, not {self.size()} times the {tensor.numel()} of the "
                "input."
            )
        self.comm.Allgather(array(_apart(flat(tensor), gathered)), array(gathered))
        write(gathered, output)
        return completed([output], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, tensors, strict=True):
            self.all_gather_single(output, tensor)
        return completed(outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, lists: list[Tensors], tensors: Tensors, opts: Any = None) -> Any:
        for outputs, tensor in zip(lists, tensors, strict=True):
            row, lengths = flat(tensor), [output.numel() for output in outputs]
            gathered = row.new_empty(sum(lengths))
            if len(set(lengths)) == 1:
                self.comm.Allgather(array(row), array(gathered))
            else:
                sizes = [length * row.element_size() for length in lengths]
                self.comm.Allgatherv(message(row), [array(gathered), sizes, MPI.BYTE])
            _distribute(gathered, outputs)
        return completed(lists, opts)

    def allgather_coalesced(self, lists: list[Tensors], tensors: Tensors, _: object = None) -> Any:
        return self.allgather([list(outputs) for outputs in zip(*lists, strict=True)], tensors)

    def gather(self, lists: list[Tensors], tensors: Tensors, opts: Any) -> Any:
        row, here = flat(tensors[0]), self.rank() == opts.rootRank
        gathered = row.new_empty(row.numel() * self.size() if here else 0)
        self.comm.Gather(message(row), message(gathered) if here else None, opts.rootRank)
        if here:
            _distribute(gathered, lists[0])
        return completed(lists, opts)

    def scatter(self, outputs: Tensors, lists: list[Tensors], opts: Any) -> Any:
        row, here = flat(outputs[0]), self.rank() == opts.rootRank
        whole = torch.cat([flat(tensor) for tensor in lists[0]]) if here else None
        self.comm.Scatter(None if whole is None else message(whole), message(row), opts.rootRank)
        write(row, outputs[0])
        return completed(outputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        row, received = flat(tensor), flat(output)
        if output_splits or splits:
            sent, wanted = (_bytes_of(each, its) for each, its in ((tensor, splits), (output, output_splits)))
            sent, wanted = sent or _evenly(row, self.size()), wanted or _evenly(received, self.size())
            self.comm.Alltoallv([array(row), sent, MPI.BYTE], [array(received), wanted, MPI.BYTE])
        else:
            self.comm.Alltoall(array(row), array(received))
        write(received, output)
        return completed([output], opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Any:
        rows = [flat(tensor) for tensor in tensors]
        whole, each = torch.cat(rows), rows[0].element_size()
        received = whole.new_empty(sum(output.numel() for output in outputs))
        self.comm.Alltoallv(
            [array(whole), [row.numel() * each for row in rows], MPI.BYTE],
            [array(received), [output.numel() * each for output in outputs], MPI.BYTE],
        )
        _distribute(received, outputs)
        return completed(outputs, opts)

    def barrier(self, opts: Any = None) -> Any:
        self.comm.Barrier()
        return completed([], opts)

    # Messages

    def send(self, tensors: Tensors, rank: int, tag: int) -> Any:
        row = flat(tensors[0])
        return PostedMessage(self.comm.Isend(message(row), rank, tag), row)

    def recv(self, tensors: Tensors, rank: int, tag: int) -> Any:
        [tensor] = tensors
        row = flat(tensor)
        finish: Callable[[], None] = lambda: write(row, tensor)  # noqa: E731
        return PostedMessage(self.comm.Irecv(message(row), rank, tag), row, finish)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _apart(row: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a row, copied if it has memory of the other: FSDP gathers in place, and MPI forbids such buffers."""
    return row.clone() if row.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() else row


def _distribute(gathered: torch.Tensor, outputs: Tensors) -> None:
    for row, output in zip(gathered.split([output.numel() for output in outputs]), outputs, strict=True):
        write(row, output)


def _evenly(row: torch.Tensor, parts: int) -> list[int]:
    return [row.numel() * row.element_size() // parts] * parts


def _bytes_of(tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
    """Return the bytes of so many rows each."""
    each = tensor[:1].numel() * tensor.element_size() if len(tensor) else 0
    return [rows * each for rows in splits]
