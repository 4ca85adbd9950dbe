"""Arrays as tensors on a device."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import has_tensors, on_device, register_messages


@pytest.mark.parametrize(("dtype", "has"), [("f4", True), ("?", True), (">f8", False), ("O", False), ("M8[s]", False)])
def test_only_numbers_that_pytorch_knows_have_tensors(dtype, has):
    assert has_tensors(np.dtype(dtype)) == has


def test_a_device_that_cannot_be_used_is_named():
    with pytest.raises(InvalidRequest, match="device='nothing' cannot be used"):
        on_device(np.zeros(3), "nothing")


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
