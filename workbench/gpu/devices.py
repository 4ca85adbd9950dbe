"""The GPUs of this process and of a world, and whether MPI can send from their memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from workbench.gpu.visible import CUDA
from workbench.text import count


@dataclass(frozen=True)
class Gpu:
    """A GPU."""

    uuid: str
    """Its identifier, which is the same in all processes of a node and on no other node."""
    name: str
    """Its model."""
    memory: int
    """Bytes of the memory; 0 if the driver does not report them."""


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA would show in a process with these variables, in the order of CUDA.

    Notes
    -----
    Empty without an NVIDIA driver, or without the package nvidia-ml-py. The numbers are those of NVML, which CUDA uses
    with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """
    nvml = _loaded()
    return () if nvml is None else tuple(_described(nvml, handle) for handle in _handles(nvml, environment))


def _described(nvml: Any, handle: Any) -> Gpu:
    memory = 0
    # A container may not read the memory of a GPU that is divided (MIG), and some GPUs have no separate memory.
    with contextlib.suppress(nvml.NVMLError):
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Gpu(str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle)), memory)


class GpuMeter:
    """Measures the GPUs of this process."""

    def __init__(self) -> None:
        self._nvml = _loaded()
        self._handles = [] if self._nvml is None else list(_handles(self._nvml, os.environ))

    def sample(self) -> dict[str, float]:
        """Return the mean load in percent, the bytes of memory that processes use, and all bytes; 0 without GPUs."""
        values = {"gpu": 0.0, "gpu_memory": 0.0, "gpu_memory_total": 0.0}
        for handle in self._handles:
            with contextlib.suppress(self._nvml.NVMLError):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                values["gpu_memory"] += memory.used
                values["gpu_memory_total"] += memory.total
            # A part of a GPU (MIG) has no load.
            with contextlib.suppress(self._nvml.NVMLError):
                values["gpu"] += self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / len(self._handles)
        return values


def _loaded() -> Any:
    """Return the module of nvidia-ml-py, initialized; None without the package or a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml if _initialized(pynvml) else None


def _initialized(nvml: ModuleType) -> bool:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return False
    return True


def _handles(nvml: Any, environment: Mapping[str, str]) -> Iterator[Any]:
    every = [_handle(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    if CUDA not in environment:
        yield from (handle for handle in every if handle is not None)
        return
    for device in map(str.strip, environment[CUDA].split(",")):
        found = None
        if device.isdigit():
            found = every[int(device)] if int(device) < len(every) else None
        elif device.startswith("MIG-"):
            with contextlib.suppress(nvml.NVMLError):
                found = nvml.nvmlDeviceGetHandleByUUID(device)
        elif device:
            # CUDA accepts the first letters of an identifier.
            known = (each for each in every if each is not None)
            found = next((each for each in known if str(nvml.nvmlDeviceGetUUID(each)).startswith(device)), None)
        if found is None:
            return  # CUDA ignores the devices after the first that does not exist
        yield found


def _handle(nvml: Any, index: int) -> Any:
    """Return the handle of a GPU; None if the driver has lost the GPU."""
    with contextlib.suppress(nvml.NVMLError):
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return None


_AWARE = {
    True: "MPI can send from their memory",
    False: "MPI cannot send from their memory, so copy to the host first",
    None: "whether MPI can send from their memory is not known",
}


def describe_gpus(ranks: Iterable[Mapping[str, Any]]) -> str:
    """Return the GPUs of ranks as text; empty if no rank has one.

    Parameters
    ----------
    ranks
        What each rank has registered: ``rank``, ``host``, ``gpus`` (a list of the fields of
        `workbench.gpu.devices.Gpu`) and ``gpu_aware`` (see `workbench.gpu.devices.is_gpu_aware`).

    Examples
    --------
    >>> gpu = {"uuid": "GPU-1f2e", "name": "NVIDIA H100", "memory": 85e9}
    >>> describe_gpus({"rank": rank, "host": "n1", "gpus": [gpu], "gpu_aware": False} for rank in (0, 1))
    '1 GPU (NVIDIA H100); ranks 0, 1 share GPU-1f2e on n1; MPI cannot send from their memory, so copy to the host first'
    """
    users, names, hosts, awareness = defaultdict(list), {}, {}, set()
    for facts in ranks:
        for gpu in facts.get("gpus", ()):
            users[gpu["uuid"]].append(facts["rank"])
            names[gpu["uuid"]], hosts[gpu["uuid"]] = gpu["name"], facts["host"]
            awareness.add(facts.get("gpu_aware"))
    if not users:
        return ""
    shared: dict[tuple[tuple[int, ...], str], list[str]] = defaultdict(list)
    for uuid, sharing in users.items():
        if len(sharing) > 1:
            shared[tuple(sorted(sharing)), hosts[uuid]].append(uuid)
    parts = [
        f"{count(len(users), 'GPU')} ({gpu_models(names.values())})",
        *(
            f"ranks {', '.join(map(str, sharing))} share {uuids[0] if len(uuids) == 1 else count(len(uuids), 'GPU')} "
            f"on {host}"
            for (sharing, host), uuids in sorted(shared.items())
        ),
        mpi_support(min(awareness, key=[False, None, True].index)),
    ]
    return "; ".join(parts)


def gpu_models(names: Iterable[str]) -> str:
    """Return the models of GPUs with their numbers, if they differ."""
    found = Counter(names)
    return next(iter(found)) if len(found) == 1 else ", ".join(f"{number} {name}" for name, number in found.items())


def mpi_support(aware: bool | None) -> str:
    """Return whether MPI can send from the memory of GPUs, as a phrase."""
    return _AWARE[aware]


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
    found = reported_support(ctypes.CDLL(mpi.__file__), environment)
    return False if found is None and kinds else found


def reported_support(library: Any, environment: Mapping[str, str]) -> bool | None:
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
