"""Which rows ranks need, on functions without MPI."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from workbench.torch.spatial.layout import Kernel, bounds

KERNELS = st.builds(
    Kernel, st.integers(1, 5), stride=st.integers(1, 4), padding=st.integers(0, 3), dilation=st.integers(1, 3)
)
HEIGHTS, RANKS = st.integers(1, 40), st.integers(1, 6)


def computed(plan, image, function, ranks):
    """Return what all ranks compute together of the rows of their windows."""
    rows = []
    for part, (first, end) in zip(plan.parts, pairwise(bounds(plan.height, ranks)), strict=True):
        window = functional.pad(image[part.window.start : part.window.stop], (part.window.before, part.window.after))
        rows.append(function(window[None, None])[0, 0, part.skip : part.skip + end - first])
    return torch.cat(rows)


@given(KERNELS, HEIGHTS, RANKS)
def test_windows_of_a_convolution_have_all_that_its_rows_need(kernel, height, ranks):
    image, weight = torch.randn(height, dtype=torch.float64), torch.randn(1, 1, kernel.size, dtype=torch.float64)
    options = {"stride": kernel.stride, "dilation": kernel.dilation}
    plan = kernel.plan(height, ranks)
    if plan.height < 1:
        with pytest.raises(RuntimeError):
            functional.conv1d(image[None, None], weight, padding=kernel.padding, **options)
        return
    expected = functional.conv1d(image[None, None], weight, padding=kernel.padding, **options)[0, 0]
    found = computed(plan, image, lambda window: functional.conv1d(window, weight, **options), ranks)
    torch.testing.assert_close(found, expected)


@given(KERNELS, HEIGHTS, RANKS, st.integers(0, 2))
def test_windows_of_a_transposed_convolution_have_all_that_its_rows_need(kernel, height, ranks, extra):
    image, weight = torch.randn(height, dtype=torch.float64), torch.randn(1, 1, kernel.size, dtype=torch.float64)
    options = {"stride": kernel.stride, "dilation": kernel.dilation}
    extra = min(extra, max(kernel.stride, kernel.dilation) - 1)
    plan = kernel.transposed(height, ranks, extra)
    if plan.height < 1:
        return
    whole = functional.conv_transpose1d(
        image[None, None], weight, padding=kernel.padding, output_padding=extra, **options
    )
    found = computed(plan, image, lambda window: functional.conv_transpose1d(window, weight, **options), ranks)
    torch.testing.assert_close(found, whole[0, 0])


@given(st.integers(2, 4), st.integers(1, 4), HEIGHTS)
def test_a_pooling_in_ceil_mode_has_as_many_rows_as_in_pytorch(size, stride, height):
    for padding in range(size // 2 + 1):
        if height + 2 * padding >= size:
            image = torch.zeros(1, 1, height)
            expected = functional.max_pool1d(image, size, stride, padding, ceil_mode=True).shape[2]
            assert Kernel(size, stride, padding).plan(height, 3, ceil_mode=True).height == expected
