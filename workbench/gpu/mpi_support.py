"""Whether MPI can send from the memory of a GPU, as the library reports: a wrong attempt would end the process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

# Functions of Open MPI and MPICH, for CUDA, Level Zero and ROCm, which return 1 or 0, and the kind of GPU by which
# MPIX_GPU_query_support of MPICH answers the same: in MPICH 3.4 the former end the process.
_QUERIES = {
    "MPIX_Query_cuda_support": 0,
    "MPIX_Query_ze_support": 1,
    "MPIX_Query_hip_support": 2,
    "MPIX_Query_rocm_support": None,
}
# The key of MPI 4.1 that lists the kinds of memory that a communicator supports, and the kinds of GPUs.
_KEY, _KINDS = "mpi_memory_alloc_kinds", ("cuda", "rocm", "level_zero")
# The switch of Cray MPICH.
_CRAY = "MPICH_GPU_SUPPORT_ENABLED"


def is_gpu_aware(mpi: Any, environment: Mapping[str, str] = os.environ) -> bool | None:
    """Return whether MPI can send from the memory of a GPU; None if the library does not report that.

    Parameters
    ----------
    mpi
        The module ``mpi4py.MPI``, after the initialization of MPI.
    environment
        The variables of this process.
    """
    info = mpi.COMM_WORLD.Get_info()
    try:
        kinds = info.Get(_KEY)
    finally:
        info.Free()
    if kinds and any(kind in kinds for kind in _KINDS):
        return True
    # The symbols of the MPI library that mpi4py has loaded. Some MPICH list no kinds of GPUs, and have the functions.
    found = reported(ctypes.CDLL(mpi.__file__), environment)
    return False if found is None and kinds else found


def reported(library: Any, environment: Mapping[str, str]) -> bool | None:
    """Return what a library reports by its functions and switches, see `is_gpu_aware`."""
    if _CRAY in environment:
        return environment[_CRAY] == "1"
    answers = [_answer(library, name, kind) for name, kind in _QUERIES.items() if hasattr(library, name)]
    return any(answers) if answers else None


def _answer(library: Any, name: str, kind: int | None) -> bool:
    if kind is None or not hasattr(library, "MPIX_GPU_query_support"):
        return bool(getattr(library, name)())
    supported = ctypes.c_int()
    library.MPIX_GPU_query_support(kind, ctypes.byref(supported))
    return bool(supported.value)
