"""Conversion of blocks to arrays of Heat and back: on the ranks, without a copy.

Heat (``pip install 'mpi-workbench[heat]'``) is a NumPy for MPI: its ``DNDarray`` is one block of rows per rank, like a
placed Dask array. So an SPMD function converts one to the other and back::

    @workbench.spmd(result="blocks")
    def centered(comm, X):
        X = to_heat(comm, X)
        return from_heat(X - heat.mean(X, axis=0))

    Z = centered(workbench.place(X))     # a Dask array again

Heat uses the communicator of the function, so its collectives can be canceled too.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from workbench.errors import InvalidRequest
from workbench.mpi.context import everyone

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Heat combines arrays only if their communications are the same object.
_communications: WeakValueDictionary[int, Any] = WeakValueDictionary()


def to_heat(comm: Any, block: npt.NDArray[Any]) -> Any:
    """Return the blocks of all ranks as one distributed array of Heat.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of the ranks with the blocks, which all call this function.
    block : numpy.ndarray
        NumPy array of shape (rows, ...), with any number of rows, also zero. The block must be writable, like tensors.

    Returns
    -------
    heat.DNDarray
        Array of shape (rows of all ranks, ...), with ``split=0``, in the memory of the blocks. It is valid during
        the call of the SPMD function, like `comm`. New arrays of Heat also use `comm` from now on.

    Raises
    ------
    InvalidRequest
        On all ranks: if Heat is not installed, if only some ranks of a world would import Heat, or if the blocks have
        different shapes or types, or a type that Heat does not support.

    Notes
    -----
    The first call imports Heat, which takes some seconds and is a collective operation of the whole world.
    """
    shape, dtype, problem = getattr(block, "shape", ()), str(getattr(block, "dtype", None)), _problem(block)
    replies = comm.allgather((problem, shape[1:], dtype, "heat" in sys.modules))
    for rank, (problem, *_) in enumerate(replies):
        if problem:
            raise InvalidRequest(f"rank {rank} of {len(replies)} has no block for Heat: {problem}")
    kinds: dict[str, int] = {}
    for rank, (_, tail, dtype, _) in enumerate(replies):
        kinds.setdefault(f"{dtype} of shape ({', '.join(map(str, ('rows', *tail)))})", rank)
    if len(kinds) > 1:
        raise InvalidRequest(
            "the blocks do not fit together as one array: "
            + "; ".join(f"rank {rank} has {kind}" for kind, rank in kinds.items())
        )
    _load(comm, everywhere=all(loaded for *_, loaded in replies))
    import heat

    communication = _communication(comm)
    # Algorithms of Heat create arrays with the default communication.
    heat.use_comm(communication)
    return heat.array(block, is_split=0, copy=False, device="cpu", comm=communication)


def from_heat(array: Any) -> npt.NDArray[Any]:
    """Return this rank's part of an array of Heat, as a block.

    Parameters
    ----------
    array : heat.DNDarray
        ``heat.DNDarray`` with ``split=0``, balanced or not.

    Returns
    -------
    numpy.ndarray
        Array of shape (rows of this rank, ...) in the memory of `array`, or a copy if that is not contiguous or on a
        GPU. If an SPMD function with ``result="blocks"`` returns it, it becomes a block of a Dask array.

    Raises
    ------
    InvalidRequest
        If `array` is not an array of Heat, or is not split by rows.
    """
    import numpy as np

    if not (hasattr(array, "larray") and hasattr(array, "split")):
        raise InvalidRequest(f"from_heat() takes a heat.DNDarray, not {type(array).__name__}.")
    if array.split != 0:
        raise InvalidRequest(
            f"the array of shape {tuple(array.shape)} has split={array.split}, and blocks need split=0. "
            "Pass heat.resplit(array, 0), or return array.numpy() for the whole array on every rank."
        )
    return np.ascontiguousarray(array.larray.detach().cpu().numpy())


def _problem(block: Any) -> str | None:
    """Return why a block cannot become an array of Heat, or None."""
    import numpy as np

    if find_spec("heat") is None:
        return "Heat is not installed. Run pip install 'mpi-workbench[heat]' in the environment of the cluster."
    if not isinstance(block, np.ndarray) or not block.ndim:
        return f"{type(block).__name__} is not an array of rows."
    if not _has_type(block.dtype):
        return f"Heat has no type for {block.dtype}. Convert the block first, for example with astype('float64')."
    if not block.flags.c_contiguous or not block.flags.writeable:
        return "the block is not contiguous, or is read-only. Pass block.copy()."
    return None


def _has_type(dtype: np.dtype[Any]) -> bool:
    return dtype.isnative and dtype.name in {
        "bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "complex64", "complex128",
    }  # fmt: skip


def _load(comm: Any, *, everywhere: bool) -> None:
    """Import Heat on all ranks together, because its import duplicates the communicator of the world."""
    if everywhere:
        return
    if comm.size < everyone().size:
        raise InvalidRequest(
            f"Heat must be imported on all {everyone().size} ranks of the world at the same time, and this call is "
            f"on {comm.size} ranks. Import Heat first, with run_on_ranks() and a function that imports heat."
        )
    comm.Barrier()
    import heat  # noqa: F401


def _communication(comm: Any) -> Any:
    from heat.core.communication import MPICommunication

    known = _communications.get(comm.handle)
    if known is None or known.handle is not comm:
        _communications[comm.handle] = known = MPICommunication(comm)
    return known
