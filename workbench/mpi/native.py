"""Passes blocks and the communicator of a rank to C and C++ code, with `ctypes`.

::

    @workbench.spmd
    def covariance(comm, X, library):
        code = ctypes.CDLL(library)
        mean = np.empty(X.shape[1])
        error = code.means(
            handle(comm), ctypes.c_long(len(X)), ctypes.c_int(X.shape[1]),
            pointer(X, "float64"), pointer(mean, "float64", writable=True),
        )

    covariance(X, build("means.c"))

C code uses the memory of the block itself, without a copy. MPI calls in C code cannot be canceled, unlike calls of the
communicator in Python.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest
from workbench.mpi.compile import build

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["build", "handle", "pointer"]


def handle(comm: Any) -> ctypes.c_int | ctypes.c_void_p:
    """Return the ``MPI_Comm`` of an mpi4py communicator, to pass to C code.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Any mpi4py communicator, for example the one of an SPMD function.

    Returns
    -------
    ctypes.c_int or ctypes.c_void_p
        An integer with MPICH and derived MPIs, a pointer with Open MPI and with the ABI of MPI 5. The type is the one
        for ``argtypes``. The value is valid as long as the communicator.

    Raises
    ------
    InvalidRequest
        If `comm` is not a communicator, or was freed.
    """
    from mpi4py import MPI

    if not isinstance(comm, MPI.Comm):
        raise InvalidRequest(
            f"handle() takes an mpi4py communicator, not {type(comm).__name__}. Pass the `comm` of the SPMD function."
        )
    if comm == MPI.COMM_NULL:
        raise InvalidRequest("the communicator is MPI_COMM_NULL: it was freed, or this rank is not a member.")
    c_type = ctypes.c_int if MPI._sizeof(comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p  # noqa: SLF001
    return c_type(comm.handle)


def pointer(array: Any, dtype: npt.DTypeLike | None = None, *, writable: bool = False) -> Any:
    """Return a typed `ctypes` pointer to the first element of an array, without a copy.

    Parameters
    ----------
    array : numpy.ndarray
        NumPy array of any shape, contiguous in C order, like blocks.
    dtype : numpy dtype, optional
        The type that the C code expects, for example ``"float64"`` for ``double *``. Default: the dtype of the array.
    writable : bool, default=False
        Whether the C code writes to the array.

    Returns
    -------
    ctypes pointer
        ``POINTER(c_double)`` for float64, and so on. For complex numbers a pointer to their real type, with alternating
        real and imaginary parts. The pointer keeps the array alive.

    Raises
    ------
    InvalidRequest
        If `dtype` is not valid, or the array is not a NumPy array, has another dtype or one without a C type, is not
        contiguous or not aligned, or is read-only although `writable` is True.

    Examples
    --------
    >>> import numpy as np
    >>> pointer(np.arange(3.0), "float64")[2]
    2.0
    """
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise InvalidRequest(
            f"pointer() takes a NumPy array, not {type(array).__name__}. Convert it, for example with its to_numpy()."
        )
    try:
        expected = array.dtype if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"dtype={dtype!r} is not a NumPy dtype. Use 'float64' for double *, 'int32' for int *."
        ) from None
    if array.dtype != expected:
        raise InvalidRequest(
            f"the array has dtype {array.dtype}, and the C code takes {expected}. "
            f"Convert the array before, with astype({expected.name!r})."
        )
    name = f"the array of dtype {array.dtype} and shape {array.shape}"
    real = array.real.dtype if array.dtype.kind == "c" else array.dtype
    try:
        c_type: Any = np.ctypeslib.as_ctypes_type(real) if array.dtype.isnative and real.kind in "biuf" else None
    except NotImplementedError:
        c_type = None
    if c_type is None:
        raise InvalidRequest(
            f"{name} has a type without a number type in C. Convert the array before, for example with "
            "astype('float64')."
        )
    if not array.flags.c_contiguous:
        raise InvalidRequest(
            f"{name} is not contiguous in C order (strides {array.strides}). Pass a copy from "
            "numpy.ascontiguousarray(...)."
        )
    if not array.flags.aligned:
        raise InvalidRequest(f"{name} does not begin at a multiple of its items' alignment. Pass a copy().")
    if writable and not array.flags.writeable:
        raise InvalidRequest(f"{name} is read-only, but the C code must write to it. Pass a copy().")
    return array.ctypes.data_as(ctypes.POINTER(c_type))
