"""Blocks as arrays of Heat, and arrays of Heat as blocks: on the ranks, without a copy.

Heat (``pip install 'mpi-workbench[heat]'``) is numpy for MPI: its ``DNDarray`` is one block of rows per rank, as a
placed Dask array is. So the way from the one to the other and back is an SPMD function::

    @workbench.spmd(result="blocks")
    def centred(comm, X):
        X = to_heat(comm, X)
        return from_heat(X - heat.mean(X, axis=0))

    Z = centred(workbench.place(X))     # a Dask array again

Heat talks by the communicator that the function was given, so that its collectives can be ended from outside, too.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Heat takes arrays together only if their communications are one object.
_communications: WeakValueDictionary[int, Any] = WeakValueDictionary()


def to_heat(comm: Any, block: npt.NDArray[Any]) -> Any:
    """Return the blocks of all ranks as one array of Heat, of which this rank holds its own.

    Parameters
    ----------
    comm
        Communicator of the ranks that hold the blocks; all of them call this.
    block
        numpy array of shape (rows, ...), any number of rows, even none; writable, for tensors always are.

    Returns
    -------
    heat.DNDarray
        Of shape (rows of all ranks, ...), with ``split=0``. Its memory is that of the blocks. It lives in the call of
        the SPMD function: afterwards there is no `comm` any more. What Heat makes from now on is of `comm`, too.

    Raises
    ------
    InvalidRequest
        On all ranks: if Heat is not installed, if it would have to be imported on some ranks of a world only, or if
        the blocks do not fit together or hold what Heat has no type for.

    Notes
    -----
    The first call imports Heat, which takes some seconds and is a collective operation of the whole world.
    """
    shape, dtype, objection = getattr(block, "shape", ()), str(getattr(block, "dtype", None)), _objection(block)
    said = comm.allgather((objection, shape[1:], dtype, "heat" in sys.modules))
    for rank, (objection, *_) in enumerate(said):
        if objection:
            raise InvalidRequest(f"rank {rank} of {len(said)} has no block for Heat: {objection}")
    kinds: dict[str, int] = {}
    for rank, (_, tail, dtype, _) in enumerate(said):
        kinds.setdefault(f"{dtype} of shape ({', '.join(map(str, ('rows', *tail)))})", rank)
    if len(kinds) > 1:
        raise InvalidRequest(
            "the blocks do not fit together as one array: "
            + "; ".join(f"rank {rank} has {kind}" for kind, rank in kinds.items())
        )
    _load(comm, everywhere=all(loaded for *_, loaded in said))
    import heat

    communication = _communication(comm)
    # Algorithms of Heat make arrays of their own, by the default.
    heat.use_comm(communication)
    return heat.array(block, is_split=0, copy=False, device="cpu", comm=communication)


def from_heat(array: Any) -> npt.NDArray[Any]:
    """Return what this rank holds of an array of Heat, as a block.

    Parameters
    ----------
    array
        ``heat.DNDarray`` with ``split=0``, balanced or not.

    Returns
    -------
    numpy.ndarray
        Of shape (rows of this rank, ...); the memory of the array, copied only where that is not contiguous or not the
        processor's. Returned from an SPMD function with ``result="blocks"`` it becomes a block of a Dask array.

    Raises
    ------
    InvalidRequest
        If it is no array of Heat, or is not split by rows.
    """
    import numpy as np

    if not (hasattr(array, "larray") and hasattr(array, "split")):
        raise InvalidRequest(f"from_heat() takes a heat.DNDarray, not {type(array).__name__}")
    if array.split != 0:
        raise InvalidRequest(
            f"the array of shape {tuple(array.shape)} has split={array.split}, and blocks are rows: "
            "pass heat.resplit(array, 0), or return array.numpy() for the whole of it on every rank"
        )
    return np.ascontiguousarray(array.larray.detach().cpu().numpy())


def _objection(block: Any) -> str | None:
    """Return what keeps a block from being one of Heat's, or None."""
    import numpy as np

    if find_spec("heat") is None:
        return "Heat is not installed there; pip install 'mpi-workbench[heat]' in the environment of the cluster"
    if not isinstance(block, np.ndarray) or not block.ndim:
        return f"it has {type(block).__name__} where an array of rows is wanted"
    if not _has_type(block.dtype):
        return f"Heat has no type for {block.dtype}; convert it before, e.g. with astype('float64')"
    if not block.flags.c_contiguous or not block.flags.writeable:
        return "it is not contiguous, or read-only; pass a copy()"
    return None


def _has_type(dtype: np.dtype[Any]) -> bool:
    return dtype.isnative and dtype.name in {
        "bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "complex64", "complex128",
    }  # fmt: skip


def _load(comm: Any, *, everywhere: bool) -> None:
    """Import Heat, on all ranks at once: it duplicates the communicator of the world then."""
    from mpi4py import MPI

    if everywhere:
        return
    if comm.size < MPI.COMM_WORLD.size:
        raise InvalidRequest(
            f"Heat must be imported on all {MPI.COMM_WORLD.size} ranks of the world at the same time; this call is on "
            f"{comm.size} of them: import it before, by run_on_ranks() without blocks and a function that imports heat"
        )
    comm.Barrier()
    import heat  # noqa: F401


def _communication(comm: Any) -> Any:
    from heat.core.communication import MPICommunication

    known = _communications.get(comm.handle)
    if known is None or known.handle is not comm:
        _communications[comm.handle] = known = MPICommunication(comm)
    return known
