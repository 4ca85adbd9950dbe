"""Arrays that have no mean over the ranks."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.torch import average


class OfJax:
    """An array as JAX has them, with a type that DLPack carries and NumPy does not have."""

    dtype = "bfloat16"

    def __dlpack__(self, **_):
        raise BufferError("unsupported type")

    def __dlpack_device__(self):
        return 1, 0


def test_short_numbers_of_other_libraries_are_to_be_converted(monkeypatch):
    # Without MPI, which the process of the unit tests must not load.
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        InvalidRequest, match=r"not bfloat16 of OfJax\. Convert the array with astype\('float32'\) first"
    ):
        average(None, OfJax())


def test_masked_elements_do_not_count_as_numbers(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(InvalidRequest):
        average(None, {"field": np.ma.masked_equal([1.0, 1e20], 1e20)})
