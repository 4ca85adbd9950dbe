"""Arrays as tensors on a device."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import has_tensors, joined, on_device, register_messages


@pytest.mark.parametrize(("dtype", "has"), [("f4", True), ("?", True), (">f8", False), ("O", False), ("M8[s]", False)])
def test_only_numbers_that_pytorch_knows_have_tensors(dtype, has):
    assert has_tensors(np.dtype(dtype)) == has


def test_a_device_that_cannot_be_used_is_named():
    with raises(InvalidRequest, option="device", given="nothing"):
        on_device(np.zeros(3), "nothing")


def test_a_rank_without_pytorch_has_no_tensors_of_other_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with raises(InvalidRequest, option="device", given=None):
        joined([object()], "cuda", copy=False)


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [1, 2])
def test_large_arrays_come_to_a_gpu_as_they_are(threads):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for array in (np.arange(5_000_003.0), np.arange(6e6).reshape(2000, 3000).T, np.zeros((1 << 23, 0))):
            np.testing.assert_array_equal(on_device(array, "cuda").cpu().numpy(), array)
    finally:
        torch.set_num_threads(before)


def test_where_there_is_no_gpu_a_tensor_of_a_gpu_arrives_in_the_memory_of_the_host(monkeypatch):
    import torch
    from distributed.protocol import deserialize, serialize

    register_messages()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tensor = torch.arange(6.0).reshape(2, 3).requires_grad_()
    header, frames = serialize(tensor)
    of_plain_dask = {name: value for name, value in header.items() if name != "gpu"}
    for sent in (header | {"gpu": True}, of_plain_dask):
        arrived = deserialize(sent, [bytearray(frame) for frame in frames])

        assert torch.equal(arrived, tensor)
        assert (arrived.device.type, arrived.requires_grad) == ("cpu", True)
