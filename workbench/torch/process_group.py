"""The process group of torch.distributed on a communicator of MPI, and the operations that are under way."""

from __future__ import annotations

# ruff: noqa: D102  (the operations are those of torch.distributed)
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist
from mpi4py import MPI

from workbench.errors import InvalidRequest
from workbench.mpi.polling import Deadline, keep_alive, poll, release
from workbench.text import count
from workbench.torch.buffers import array, flat, message, to_write, write
from workbench.torch.reductions import all_reduce, reduction

_FOREVER = timedelta(0)


def completed(result: list[Any], opts: Any = None) -> Any:
    """Return the work of an operation that is over.

    Torch only waits for the work of an operation with ``async_op=False`` in `opts`; one work serves all of these.
    """
    return _completed(result) if getattr(opts, "asyncOp", True) else _OVER


def _completed(result: list[Any]) -> Any:
    # A wait for the future also waits for the copies to these GPUs.
    future: Any = torch.futures.Future(devices=list({tensor.device for tensor in _tensors(result) if tensor.is_cuda}))
    future.set_result(result)
    c10d: Any = torch._C._distributed_c10d  # noqa: SLF001  (what torch's own groups in Python call)
    return c10d._create_work_from_future(future)  # noqa: SLF001


def _tensors(result: list[Any]) -> Iterator[torch.Tensor]:
    for part in result:
        if isinstance(part, torch.Tensor):
            yield part
        else:
            yield from _tensors(part)


_OVER = _completed([])


class PostedMessage(dist.Work):
    """A message that is under way.

    Parameters
    ----------
    request
        Of the communicator.
    held
        What MPI reads or writes.
    finish
        Called once the message has arrived, with its status.
    """

    def __init__(
        self, request: MPI.Request, held: object, finish: Callable[[MPI.Status], None] = lambda _: None
    ) -> None:
        super().__init__()
        self._request, self._finish, self._held = request, finish, held
        self._source = -1
        self._over = False

    def __del__(self) -> None:
        """Keep what MPI still reads or writes, if the program does not wait for the message."""
        if not self._over:
            release()
            keep_alive(self._request, self._held)

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Return when the message has arrived; raises `CollectiveFailed` after the timeout, if there is one."""
        if not self._over:
            status = MPI.Status()
            if timeout > _FOREVER:
                within = Deadline(timeout.total_seconds(), "a message of torch.distributed did not arrive")
                poll(lambda: self._request.Test(status), within.check)
            else:
                self._request.Wait(status)
            self._end(status)
        return True

    def is_completed(self) -> bool:
        """Return whether the message has arrived, without waiting for it."""
        status = MPI.Status()
        if not self._over and self._request.Test(status):
            self._end(status)
        return self._over

    def _end(self, status: MPI.Status) -> None:
        self._over, self._source, self._held = True, status.source, None
        self._finish(status)

    def is_success(self) -> bool:
        """Return whether the message has arrived."""
        return self._over

    def source_rank(self) -> int:
        """Return the rank in the group that has sent the message."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Wait for the message, and return a future that is over."""
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


Tensors = list[torch.Tensor]

# Of the messages by which the ranks of a new group meet; those of torch's users have the tags that these users give.
_MEETING = 32_000


class MPIProcessGroup(dist.ProcessGroup):
    """A process group whose operations are those of a communicator.

    Parameters
    ----------
    comm
        Belongs to the group.
    name
        Name of the group in torch.distributed.

    Notes
    -----
    A collective operation is over when its method returns, also with ``async_op=True``: on the cores of a rank nothing
    runs beside it. Messages between two ranks are posted. MPI gets copies of tensors on a GPU in the memory of
    the host, also where MPI could read the memory of the GPU.

    Torch names the operations on one tensor anew from release to release: `all_gather_single` of 2.13 was
    `_allgather_base`, and so on. Both names are there.
    """

    _parents: ClassVar[list[MPI.Intracomm]] = []

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._name = name
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
        name = str(options.group_id)
        if cls._parents:
            return cls(cls._parents.pop(), name)
        if not isinstance(dist.group.WORLD, cls):
            raise InvalidRequest(
                "the backend 'workbench' can only make groups in a block of workbench.torch.distributed(comm)."
            )
        world: MPIProcessGroup = dist.group.WORLD
        group = cls(world.part(list(options.global_ranks_in_group), name), name)
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
        return self._name

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
        row, part = flat(tensor), to_write(output)
        _require_parts(self.size(), input=row, output=part)
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
        row, gathered = flat(tensor), to_write(output)
        _require_parts(self.size(), output=gathered, input=row)
        self.comm.Allgather(array(_apart(row, gathered)), array(gathered))
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
            _require_list("outputs", outputs, self.size(), row, self.rank())
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
        if here:
            _require_list("outputs", lists[0], self.size(), row)
        gathered = row.new_empty(row.numel() * self.size() if here else 0)
        self.comm.Gather(message(row), message(gathered) if here else None, opts.rootRank)
        if here:
            _distribute(gathered, lists[0])
        return completed(lists, opts)

    def scatter(self, outputs: Tensors, lists: list[Tensors], opts: Any) -> Any:
        row, here = to_write(outputs[0]), self.rank() == opts.rootRank
        if here:
            _require_list("inputs", lists[0], self.size(), row)
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
        received = to_write(output)
        row = _apart(flat(tensor), received)
        sent, wanted = _bytes_of(tensor, splits, self.size()), _bytes_of(output, output_splits, self.size())
        if sent[self.rank()] != wanted[self.rank()]:
            raise InvalidRequest(
                f"rank {self.rank()} sends {sent[self.rank()]} bytes to the same rank, and the output has "
                f"{wanted[self.rank()]} for them. Pass the same number of rows in the input and in the output."
            )
        if output_splits or splits:
            self.comm.Alltoallv([array(row), sent, MPI.BYTE], [array(received), wanted, MPI.BYTE])
        else:
            self.comm.Alltoall(array(row), array(received))
        write(received, output)
        return completed([output], opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Any:
        rows = [flat(tensor) for tensor in tensors]
        _require_list("inputs", tensors, self.size(), outputs[self.rank()], self.rank())
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

        def finish(status: MPI.Status) -> None:
            # MPI accepts a shorter message, and leaves the other elements as they were.
            if 0 <= (nbytes := status.Get_elements(MPI.BYTE)) < row.nbytes:
                raise InvalidRequest(
                    f"a message of {nbytes} bytes arrived for a tensor of {row.nbytes} bytes ({row.dtype}). Send and "
                    "receive tensors of one type and number of elements."
                )
            write(row, tensor)

        return PostedMessage(self.comm.Irecv(message(row), rank, tag), row, finish)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)


class _NoStore(dist.Store):
    """Refuses groups that need a store, in which the ranks of gloo would wait for each other for half an hour."""

    def _refuse(self, *_: object) -> NoReturn:
        raise InvalidRequest(
            "the groups of a distributed() block have no store, which other backends need. Make groups without "
            "backend=: new_group(ranks)."
        )

    set = get = add = check = wait = compare_set = _refuse


# Torch holds the part of a store that is not in Python, and calls these methods while the object exists.
NO_STORE = _NoStore()
"""The store of the default group."""


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _apart(row: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a row, copied if it has memory of the other: FSDP gathers in place, and MPI forbids such buffers."""
    return row.clone() if row.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() else row


def _distribute(gathered: torch.Tensor, outputs: Tensors) -> None:
    for row, output in zip(gathered.split([output.numel() for output in outputs]), outputs, strict=True):
        write(row, output)


def _bytes_of(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Return the bytes for each rank of a tensor: of so many rows, or of an equal number of rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    each = tensor.numel() // max(1, rows) * tensor.element_size()
    if splits and (len(splits) != ranks or sum(splits) != rows):
        raise InvalidRequest(
            f"the split sizes {list(splits)} are not valid. Pass a number of rows for each of the {ranks} ranks, "
            f"{rows} together."
        )
    if not splits and rows % ranks:
        raise InvalidRequest(
            f"{rows} rows cannot be divided equally among {ranks} ranks. Pass split sizes, the number of rows for each "
            "rank."
        )
    return [split * each for split in splits or [rows // ranks] * ranks]


def _require_parts(ranks: int, **rows: torch.Tensor) -> None:
    """Raise InvalidRequest unless the first row has the elements of the second one for each rank, of one type."""
    (name, whole), (other, part) = rows.items()
    if whole.numel() != ranks * part.numel():
        raise InvalidRequest(
            f"the {name} has {whole.numel()} elements, not {ranks} times the {part.numel()} of the {other}."
        )
    if whole.dtype != part.dtype:
        raise InvalidRequest(
            f"the {name} is of {whole.dtype} and the {other} of {part.dtype}. Pass tensors of one type."
        )


def _require_list(name: str, tensors: Tensors, ranks: int, like: torch.Tensor, rank: int | None = None) -> None:
    """Raise InvalidRequest unless each rank has a tensor, and each, or that of `rank`, has the elements of `like`."""
    lengths = [tensor.numel() for tensor in tensors]
    if len(lengths) != ranks or {*(lengths if rank is None else [lengths[rank]])} != {like.numel()}:
        which = "each" if rank is None else f"that of rank {rank}"
        raise InvalidRequest(
            f"the {name} have {lengths} elements. Pass {count(ranks, 'tensor')}, {which} with "
            f"{count(like.numel(), 'element')}."
        )
