"""The NVIDIA GPUs of this process, their load and memory, from NVML: a monitor must not start CUDA."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from workbench.gpu.visible import CUDA


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
    # A container may not read the memory of a GPU that is divided (MIG), and some GPUs have no memory of their own.
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
