"""Arrays as tensors of PyTorch on a device, and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.errors import InvalidRequest

# Bytes of a page-locked buffer, and of the smallest tensor for which two of them save time.
_BUFFER, _LARGE = 8 << 20, 32 << 20


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    # A tensor exists only where its module is loaded.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def device_of(value: Any) -> str | None:
    """Return the kind of the device of a tensor, as ``"cuda"``; None for any other value."""
    return value.device.type if is_tensor(value) else None


def has_tensors(dtype: np.dtype[Any]) -> bool:
    """Return whether PyTorch has tensors of a dtype of NumPy."""
    return dtype.kind in "biufc" and dtype.isnative and dtype.name not in {"float128", "complex256"}


def is_of_other_library(value: Any) -> bool:
    """Return whether a value is an array of another library than NumPy that shares memory by DLPack, as CuPy's are."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)


def joined(pieces: Sequence[Any], device: str, *, copy: bool) -> Any:
    """Return arrays of a library with DLPack as one tensor on a device; with the memory of a single array, or a `copy`.

    Raises
    ------
    InvalidRequest
        See `on_device`.
    """
    torch = _torch(device)
    found = [torch.from_dlpack(piece) for piece in pieces]
    whole = torch.cat(found) if len(found) > 1 else found[0].contiguous()
    # A view keeps a larger array alive.
    is_shared = whole is found[0] and (copy or _is_part(pieces[0]))
    return on_device(whole.clone() if is_shared else whole, device)


def _is_part(array: Any) -> bool:
    if is_tensor(array):
        return bool(array.untyped_storage().nbytes() > array.nbytes)
    return getattr(array, "base", None) is not None


def register_size(sizeof: Any) -> None:
    """Register the bytes of tensors in `dask.sizeof.sizeof`."""
    import torch

    sizeof.register(torch.Tensor, lambda tensor: tensor.nelement() * tensor.element_size())


def register_messages() -> None:
    """Have Dask send tensors on a GPU as bytes, by memory of the host; where there is no GPU, they arrive there.

    Without this Dask pickles these tensors, and a process without a GPU cannot load them.
    """
    import torch
    from distributed.protocol import torch as plain
    from distributed.protocol.serialize import dask_deserialize, dask_serialize

    def pack(tensor: torch.Tensor) -> tuple[dict[str, Any], list[Any]]:
        copy = tensor
        if tensor.is_cuda:
            copy = to_host(tensor).requires_grad_(tensor.requires_grad)
            copy.grad = None if tensor.grad is None else to_host(tensor.grad)
        header, frames = plain.serialize_torch_Tensor(copy)
        return header | {"gpu": tensor.is_cuda}, frames

    def unpack(header: dict[str, Any], frames: list[Any]) -> torch.Tensor:
        tensor: torch.Tensor = plain.deserialize_torch_Tensor(header, frames)
        # A process that has not imported the workbench sends Dask's own header.
        if not header.get("gpu") or not torch.cuda.is_available():
            return tensor
        copy = _to_device(tensor.detach(), "cuda").requires_grad_(tensor.requires_grad)
        copy.grad = None if tensor.grad is None else _to_device(tensor.grad, "cuda")
        return copy

    dask_serialize.register(torch.Tensor, pack)
    dask_deserialize.register(torch.Tensor, unpack)


def on_device(value: Any, device: str) -> Any:
    """Return an array or a tensor as a tensor on a device: the same memory if the value is there, else a copy.

    Parameters
    ----------
    value
        NumPy array of numbers, or tensor.
    device
        Name of a device of PyTorch, for example ``"cuda"``; ``"cpu"`` is the memory of the host.

    Raises
    ------
    InvalidRequest
        If this process has no PyTorch, cannot use the device, or the device has no memory for the value.
    """
    torch = _torch(device)
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        # PyTorch has no tensors that cannot be written.
        value = value.copy()
    try:
        return _to_device(torch.as_tensor(value), device)
    except torch.OutOfMemoryError as error:
        raise InvalidRequest(
            f"device={device!r} has no memory for {value.nbytes} bytes. Use more ranks, or pass device=None, which "
            "computes on the CPU."
        ) from error
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise InvalidRequest(
            f"device={device!r} cannot be used: {reason}. Pass device=None, which computes on the CPU, or use "
            "ranks with a GPU (--gpus-per-rank 1).",
            option="device",
            given=device,
        ) from error


def _to_device(tensor: Any, device: str) -> Any:
    """Return a tensor on a device: the same one if it is there, else a copy.

    A large one goes to a GPU through two page-locked buffers: the threads of PyTorch fill one while the GPU reads the
    other. The driver copies from other memory with one thread.
    """
    import torch

    is_large = tensor.nbytes >= _LARGE and tensor.is_contiguous() and torch.get_num_threads() > 1
    if not is_large or tensor.is_cuda or torch.device(device).type != "cuda":
        return tensor.to(device)
    copy, count = torch.empty_like(tensor, device=device), _BUFFER // tensor.element_size()
    buffers = [torch.empty(count, dtype=tensor.dtype, pin_memory=True) for _ in range(2)]
    is_read = [torch.cuda.Event() for _ in buffers]
    with torch.cuda.device(copy.device):
        for number, (source, target) in enumerate(
            zip(tensor.view(-1).split(count), copy.view(-1).split(count), strict=True)
        ):
            event, buffer = is_read[number % 2], buffers[number % 2][: len(source)]
            event.synchronize()
            target.copy_(buffer.copy_(source), non_blocking=True)
            event.record()
    return copy


def to_host(tensor: Any) -> Any:
    """Return a copy of a tensor on a GPU in page-locked memory of the host, which the GPU reads and writes fastest."""
    import torch

    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return copy.copy_(tensor.detach())


def on_host(value: Any) -> Any:
    """Return a tensor as a NumPy array, copied unless the host has its memory; other values unchanged."""
    return value.detach().cpu().numpy() if is_tensor(value) else value


def to_bytes(tensor: Any) -> tuple[str, list[int], Any]:
    """Return dtype, shape and bytes of a tensor of any device: NumPy has not all dtypes of PyTorch."""
    import torch

    host = tensor.detach().cpu().contiguous()
    return str(host.dtype).removeprefix("torch."), list(host.shape), host.reshape(-1).view(torch.uint8).numpy()


def from_bytes(dtype: str, shape: Sequence[int], content: Any) -> Any:
    """Return the tensor of `to_bytes` on the host."""
    import torch

    tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(content))
    return tensor


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise missing(device, error) from error
    return torch


def missing(device: str, error: ImportError) -> InvalidRequest:
    """Return the error for a device if a library is not installed."""
    return InvalidRequest(
        f"device={device!r} cannot be used: the ranks have no {error.name}. Run pip install 'mpi-workbench[torch]'.",
        option="device",
    )
