"""A fake of nvidia-ml-py: GPUs that this host does not have."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace


class NVMLError(Exception):
    """The error of the module."""


def _or_error(value):
    if value is None:
        raise NVMLError
    return value


def fake_nvml(*uuids, load=50, used=1 << 30, total=80 << 30, driver=True):
    """Return a module ``pynvml`` with GPUs of these identifiers; the driver has lost a GPU with None."""
    module = ModuleType("pynvml")

    def init():
        if not driver:
            raise NVMLError

    def by_uuid(uuid):
        if not uuid.startswith("MIG-known"):
            raise NVMLError
        return uuid

    def memory(handle):
        return _or_error(None if handle == "GPU-divided" else SimpleNamespace(used=used, total=total))

    def rates(handle):
        if handle.startswith("MIG-"):
            raise NVMLError
        return SimpleNamespace(gpu=load)

    vars(module).update(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda index: _or_error(uuids[index]),
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda _: "NVIDIA H100",
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetUtilizationRates=rates,
    )
    return module
