"""The mean of arrays over the ranks, of whatever library: gradients of those who do not train with DDP."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import is_tensor

if TYPE_CHECKING:
    import numpy.typing as npt
    from mpi4py import MPI

# Types that MPI adds; shorter ones travel as float32, and are rounded once.
_WIDE = ("float32", "float64", "complex64", "complex128")
# Types of other libraries that NumPy does not have.
_SHORT = re.compile("bfloat16|float[48]")
# The type of a device in DLPack.
_HOST = 1


def average(comm: MPI.Intracomm, arrays: Any) -> Any:
    """Return the mean of arrays over all ranks; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of the call.
    arrays : array, sequence of arrays or mapping of arrays
        Real or complex arrays of any shapes, of NumPy, PyTorch or any library with DLPack, as JAX and CuPy; in the
        memory of the host or of a GPU. All ranks pass the same shapes and types in the same order.

    Returns
    -------
    array, list of arrays or dict of arrays
        New arrays of the same libraries, shapes, types and devices: `arrays` stay as they are. NumPy's where the
        library of an array, except for CuPy, does not implement the array API standard.

    Raises
    ------
    InvalidRequest
        On all ranks, if the shapes or types differ between ranks; on the rank alone, if an array has other
        elements or a mask, or is in the memory of a GPU and its library does not copy it to the host.

    Notes
    -----
    Arrays of one type travel in one buffer, by one ``Allreduce``, as in Horovod's tensor fusion (Sergeev and Del Balso,
    2018).

    Examples
    --------
    >>> workbench.run_on_ranks(lambda comm: average(comm, {"w": np.full(2, float(comm.rank))}), result="root")
    {'w': array([1.5, 1.5])}
    """
    import numpy as np

    if isinstance(arrays, Mapping):
        return dict(zip(arrays, average(comm, list(arrays.values())), strict=True))
    if not isinstance(arrays, Sequence):
        return average(comm, [arrays])[0]
    found = [_numpy(array) for array in arrays]
    _require_alike(
        comm, [(array.shape, str(getattr(given, "dtype", "?"))) for array, given in zip(found, arrays, strict=True)]
    )
    # Arrays that are refused are refused without MPI.
    from mpi4py import MPI

    means: list[Any] = [None] * len(found)
    for dtype in dict.fromkeys(array.dtype for array in found):
        places = [place for place, array in enumerate(found) if array.dtype == dtype]
        whole = np.concatenate([found[place].ravel() for place in places])
        comm.Allreduce(MPI.IN_PLACE, whole)
        whole /= comm.size
        parts = np.split(whole, np.cumsum([found[place].size for place in places])[:-1])
        for place, part in zip(places, parts, strict=True):
            means[place] = _like(part.reshape(found[place].shape), arrays[place])
    return means


def _numpy(array: Any) -> npt.NDArray[Any]:
    """Return the elements in a type that MPI adds, not copied where they have such a type."""
    import numpy as np

    if is_tensor(array):
        # DLPack has no conjugate or negative views, and passes their memory as it is.
        array = array.detach().resolve_conj().resolve_neg()
        array = array.cpu() if array.is_cuda else array
        if array.is_floating_point() and str(array.dtype).partition(".")[2] not in _WIDE:
            array = array.float()
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidRequest(
            "average() takes no masked arrays, whose masked elements would count. Pass array.filled(0) and "
            "(~numpy.ma.getmaskarray(array)).astype(float), and divide the first mean by the second one."
        )
    try:
        found = array if isinstance(array, np.ndarray) else _from_dlpack(array)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        if _SHORT.search(kind := str(getattr(array, "dtype", ""))):
            raise InvalidRequest(
                f"average() takes types of NumPy, not {kind} of {type(array).__name__}. Convert the array with "
                "astype('float32') first, and convert the mean back."
            ) from error
        raise InvalidRequest(
            f"average() takes arrays of NumPy, PyTorch or with DLPack that can be copied to the memory of the host, "
            f"not {type(array).__name__} ({error}). Convert the array with numpy.asarray(array), or on a GPU with "
            "array.get()."
        ) from error
    if found.dtype == np.float16:
        found = found.astype(np.float32)
    if found.dtype.name not in _WIDE:
        raise InvalidRequest(
            f"average() takes real and complex numbers, not {found.dtype}. Convert the array with astype('float32')."
        )
    return found


def _from_dlpack(array: Any) -> npt.NDArray[Any]:
    import numpy as np

    # Libraries whose arrays are always in the memory of the host need not accept a device.
    if array.__dlpack_device__()[0] == _HOST:
        return np.from_dlpack(array)
    return np.from_dlpack(array, device="cpu")


def _require_alike(comm: MPI.Intracomm, kinds: list[tuple[tuple[int, ...], str]]) -> None:
    import numpy as np
    from mpi4py import MPI

    code = zlib.crc32(repr(kinds).encode())
    extremes = np.array([code, -code])
    comm.Allreduce(MPI.IN_PLACE, extremes, MPI.MAX)
    if extremes[0] != -extremes[1]:
        said = comm.allgather(kinds)
        other = next((rank for rank, given in enumerate(said) if given != said[0]), 0)
        raise InvalidRequest(
            f"average() takes the same shapes and types on all ranks. Rank 0 has {said[0]}, and rank {other} has "
            f"{said[other]}."
        )


def _like(mean: npt.NDArray[Any], given: Any) -> Any:
    """Return a mean as an array of the library and the type of what was given."""
    import numpy as np

    if isinstance(given, np.ndarray):
        return mean.astype(given.dtype, copy=False)
    if is_tensor(given):
        return sys.modules["torch"].from_numpy(mean).to(given.device, given.dtype)
    if "cupy" in sys.modules and isinstance(given, sys.modules["cupy"].ndarray):
        # CuPy has the functions of the array API standard, but neither the method that returns them nor `device`.
        with given.device:
            return sys.modules["cupy"].asarray(mean, given.dtype)
    if hasattr(given, "__array_namespace__"):
        return given.__array_namespace__().asarray(mean, dtype=given.dtype, device=given.device)
    return mean
