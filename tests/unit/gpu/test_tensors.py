"""Arrays as tensors on a device."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import has_tensors, on_device


@pytest.mark.parametrize(("dtype", "has"), [("f4", True), ("?", True), (">f8", False), ("O", False), ("M8[s]", False)])
def test_only_numbers_that_pytorch_knows_have_tensors(dtype, has):
    assert has_tensors(np.dtype(dtype)) == has


def test_a_device_that_cannot_be_used_is_named():
    with pytest.raises(InvalidRequest, match="device='nothing' cannot be used"):
        on_device(np.zeros(3), "nothing")
