"""Reductions of tensors over the ranks, of every type of elements, and by pieces for memory of a GPU.

MPI reduces the numbers that NumPy has. Of bfloat16, float16 and the real types of 8 bits MPI knows nothing, and an
operation of our own would abort the world when it fails: there each rank gets the same part of every tensor as bytes,
reduces in float32, rounds once, and sends the part to all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import to_host
from workbench.torch.buffers import array, flat, message, row_of, write

# Bytes of a piece, and pieces that are copied while MPI works on another.
_PIECE = 4 << 20
_AHEAD = 2


def by_host(row: torch.Tensor, operate: Callable[[torch.Tensor], None]) -> None:
    """Change a row of elements on a GPU by an operation on rows of elements in memory of the host.

    Parameters
    ----------
    row
        Row on a GPU. Work that is queued later on the current stream of the GPU finds the changed elements.
    operate
        Called with page-locked copies of all parts of the row, in order, and changes these. While the operation works
        on one piece, the GPU copies the next pieces to the host, and the one before back. A row of up to 4 MiB is one
        piece.
    """
    size = _PIECE // row.element_size()
    if row.numel() <= size:
        copy = to_host(row)
        operate(copy)
        row.copy_(copy, non_blocking=True)
        return
    with torch.cuda.device(row.device):
        current, down, up = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
        down.wait_stream(current)
        ahead: deque[tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]] = deque()

        def finish() -> None:
            piece, copy, copied = ahead.popleft()
            copied.synchronize()
            operate(copy)
            with torch.cuda.stream(up):
                # The allocator of page-locked memory keeps the copy until the GPU has read it.
                piece.copy_(copy, non_blocking=True)

        for piece in row.split(size):
            copy = torch.empty_like(piece, device="cpu", pin_memory=True)
            with torch.cuda.stream(down):
                copy.copy_(piece, non_blocking=True)
                ahead.append((piece, copy, down.record_event()))
            if len(ahead) > _AHEAD:
                finish()
        while ahead:
            finish()
        current.wait_stream(up)


_KIND = dist.ReduceOp.RedOpType
_OPS = {
    _KIND.SUM: MPI.SUM, _KIND.AVG: MPI.SUM, _KIND.PRODUCT: MPI.PROD, _KIND.MAX: MPI.MAX, _KIND.MIN: MPI.MIN,
    _KIND.BAND: MPI.BAND, _KIND.BOR: MPI.BOR, _KIND.BXOR: MPI.BXOR,
}  # fmt: skip
# A truth value is a byte of 0 or 1.
_TRUTH = {
    _KIND.SUM: MPI.MAX, _KIND.MAX: MPI.MAX, _KIND.BOR: MPI.MAX,
    _KIND.PRODUCT: MPI.MIN, _KIND.MIN: MPI.MIN, _KIND.BAND: MPI.MIN, _KIND.BXOR: MPI.BXOR,
}  # fmt: skip
_SHORT = {_KIND.SUM: "sum", _KIND.AVG: "sum", _KIND.PRODUCT: "prod", _KIND.MAX: "amax", _KIND.MIN: "amin"}
_BITS = {_KIND.BAND, _KIND.BOR, _KIND.BXOR}
_OF_MPI = {
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.bool,
}  # fmt: skip


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """Return an operation, `reduceOp` of torch's options, on elements of a type."""
    return _reduction(getattr(op, "op", op), dtype)


class Reduction:
    """One operation on elements of one type.

    Parameters
    ----------
    kind
        The operation.
    dtype
        Of the elements.

    Raises
    ------
    InvalidRequest
        If the operation does not exist for the type, on every rank alike.
    """

    def __init__(self, kind: Any, dtype: torch.dtype) -> None:
        self._kind = kind
        self._own = dtype not in _OF_MPI
        if self._own and dtype.is_complex:
            raise InvalidRequest(
                f"a process group of the workbench cannot reduce {dtype}. Convert the tensor to complex64."
            )
        known = _TRUTH if dtype == torch.bool else _SHORT if self._own else _OPS
        real = dtype.is_floating_point or dtype.is_complex
        unordered = dtype.is_complex and kind in {_KIND.MAX, _KIND.MIN}
        if kind not in known or unordered or (real and kind in _BITS) or (not real and kind == _KIND.AVG):
            allowed = ", ".join(each.name for each in known if not (each == _KIND.AVG and not real))
            raise InvalidRequest(
                f"a process group of the workbench has no ReduceOp.{kind.name} for {dtype}. Choose one of {allowed}; "
                "BAND, BOR and BXOR take only integers, AVG takes only real and complex numbers."
            )
        self._op: Any = None if self._own else known[kind]
        self._bytes = dtype == torch.bool

    def to_all(self, comm: MPI.Intracomm, row: torch.Tensor) -> None:
        """Reduce a row of elements in place, on all ranks."""
        if self._own:
            each = -(-row.numel() // comm.size)
            padded = row.new_zeros(each * comm.size)
            padded[: row.numel()] = row
            part = padded.new_empty(each)
            self.scattered(comm, padded, part, finish=False)
            comm.Allgather(message(part), message(padded))
            row.copy_(padded[: row.numel()])
        else:
            comm.Allreduce(MPI.IN_PLACE, self._array(row), self._op)
        self._finish(comm, row)

    def to_root(self, comm: MPI.Intracomm, row: torch.Tensor, root: int) -> None:
        """Reduce a row of elements in place, on one rank; those of the others stay."""
        if self._own:
            reduced = row.clone()
            self.to_all(comm, reduced)
            if comm.rank == root:
                row.copy_(reduced)
        elif comm.rank == root:
            comm.Reduce(MPI.IN_PLACE, self._array(row), self._op, root)
            self._finish(comm, row)
        else:
            comm.Reduce(self._array(row), None, self._op, root)

    def scattered(self, comm: MPI.Intracomm, row: torch.Tensor, part: torch.Tensor, *, finish: bool = True) -> None:
        """Reduce a row that has a part for each rank, and write the part of this rank."""
        if self._own:
            received = torch.empty_like(row)
            comm.Alltoall(message(row), message(received))
            reduce = getattr(torch, _SHORT[self._kind])
            total = reduce(received.view(comm.size, -1).float(), 0)
            # The mean is taken before it is rounded: the sum may be too large for the type.
            part.copy_(total / comm.size if self._kind == _KIND.AVG else total)
        else:
            comm.Reduce_scatter_block(self._array(row), self._array(part), self._op)
        if finish:
            self._finish(comm, part)

    def _array(self, row: torch.Tensor) -> Any:
        return array(row) if self._bytes else row.numpy()

    def _finish(self, comm: MPI.Intracomm, row: torch.Tensor) -> None:
        if self._kind == _KIND.AVG and not self._own:
            row.div_(comm.size)


# Made once, because small messages take a few microseconds.
_reduction = lru_cache(maxsize=None)(Reduction)


def all_reduce(comm: MPI.Intracomm, tensors: list[torch.Tensor], op: Any) -> None:
    """Reduce tensors in place, on all ranks; those of one type travel together."""
    if len(tensors) == 1 and not tensors[0].is_sparse:
        # A bucket of DDP: what several tensors need takes as long as the rest of a small reduction.
        row = row_of(tensors[0])
        reduce = reduction(op, row.dtype)
        if row.is_cpu:
            reduce.to_all(comm, row)
        else:
            by_host(row, partial(reduce.to_all, comm))
        write(row, tensors[0])
        return
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_sparse:
            _all_reduce_sparse(comm, tensor, op)
        else:
            by_type.setdefault(tensor.dtype, []).append(tensor)
    for dtype, alike in by_type.items():
        reduce = reduction(op, dtype)
        rows = [flat(tensor) for tensor in alike]
        whole = torch.cat(rows)
        reduce.to_all(comm, whole)
        for tensor, row in zip(alike, whole.split([row.numel() for row in rows]), strict=True):
            write(row, tensor)


def _all_reduce_sparse(comm: MPI.Intracomm, tensor: torch.Tensor, op: Any) -> None:
    if getattr(op, "op", op) != _KIND.SUM:
        raise InvalidRequest("sparse tensors can only be added. Use ReduceOp.SUM, or tensor.to_dense().")
    mine = tensor.detach().coalesce()
    parts = comm.allgather((mine.indices().cpu().numpy(), mine.values().cpu().numpy()))
    indices = torch.cat([torch.from_numpy(part) for part, _ in parts], dim=1)
    values = torch.cat([torch.from_numpy(part) for _, part in parts])
    with torch.no_grad():
        # Without a choice PyTorch warns.
        total = torch.sparse_coo_tensor(indices, values, tensor.shape, device="cpu", check_invariants=False)
        tensor.copy_(total.to(tensor.device).coalesce())
