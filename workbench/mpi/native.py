"""How a rank hands its blocks and its communicator to C and C++, by `ctypes`.

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

C code works on the memory of the block itself: nothing is copied. It blocks in MPI where the call that it is in
cannot be ended from outside, other than calls of the communicator in Python.
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
    """Return the ``MPI_Comm`` of an mpi4py communicator, as the MPI of this rank has it in C.

    Parameters
    ----------
    comm
        Any mpi4py communicator, as an SPMD function gets one or made from it.

    Returns
    -------
    ctypes.c_int or ctypes.c_void_p
        A number on MPICH and its kin, a pointer on Open MPI; to be passed as it is. Its type is the one for
        ``argtypes``. Good as long as the communicator is.

    Raises
    ------
    InvalidRequest
        If `comm` is no communicator, or none any more.
    """
    from mpi4py import MPI

    if not isinstance(comm, MPI.Comm):
        raise InvalidRequest(
            f"handle() takes an mpi4py communicator, not {type(comm).__name__}: pass the `comm` of the SPMD function"
        )
    if comm == MPI.COMM_NULL:
        raise InvalidRequest("this communicator is MPI_COMM_NULL: it was freed, or this rank is not in it")
    as_in_c = ctypes.c_int if MPI._sizeof(comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p  # noqa: SLF001
    return as_in_c(comm.handle)


def pointer(array: Any, dtype: npt.DTypeLike | None = None, *, writable: bool = False) -> Any:
    """Return a typed `ctypes` pointer to the first element of an array, where it lies.

    Parameters
    ----------
    array
        numpy array of any shape, contiguous in C order, as blocks are.
    dtype
        What the C code takes it for, e.g. ``"float64"`` for ``double *``. Default: whatever it is.
    writable
        Whether the C code writes to it.

    Returns
    -------
    ctypes pointer
        ``POINTER(c_double)`` for float64, and so on; complex numbers as pointer to their real type, real and imaginary
        parts in turn. Keeps the array alive.

    Raises
    ------
    InvalidRequest
        If there is no such dtype; if the array is not a numpy array, is of another dtype or of one that C does not
        have, or is not contiguous, not aligned or read-only where it is to be written.

    Examples
    --------
    >>> import numpy as np
    >>> pointer(np.arange(3.0), "float64")[2]
    2.0
    """
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise InvalidRequest(
            f"pointer() takes a NumPy array, not {type(array).__name__}: convert it, e.g. with its to_numpy()"
        )
    try:
        wanted = array.dtype if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"dtype={dtype!r} is not one of NumPy: for double * it is 'float64', for int * 'int32'"
        ) from None
    if array.dtype != wanted:
        raise InvalidRequest(
            f"the array is of dtype {array.dtype}, and the C code takes {wanted}: "
            f"convert it before, with astype({wanted.name!r})"
        )
    described = f"the array of dtype {array.dtype} and shape {array.shape}"
    real = array.real.dtype if array.dtype.kind == "c" else array.dtype
    try:
        in_c: Any = np.ctypeslib.as_ctypes_type(real) if array.dtype.isnative and real.kind in "biuf" else None
    except NotImplementedError:
        in_c = None
    if in_c is None:
        raise InvalidRequest(
            f"{described} holds what C has no number type for: convert it before, e.g. with astype('float64')"
        )
    if not array.flags.c_contiguous:
        raise InvalidRequest(
            f"{described} is not contiguous in C order (strides {array.strides}): make it so with "
            "numpy.ascontiguousarray(...), which copies it"
        )
    if not array.flags.aligned:
        raise InvalidRequest(f"{described} does not begin at a multiple of its items' alignment: pass a copy()")
    if writable and not array.flags.writeable:
        raise InvalidRequest(f"{described} is read-only, and the C code is to write to it: pass a copy()")
    return array.ctypes.data_as(ctypes.POINTER(in_c))
