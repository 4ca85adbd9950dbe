"""Batches as parts of the rows of a rank."""

from __future__ import annotations

import torch

from workbench.torch.exchange import cut


def test_a_program_may_write_to_a_batch_also_what_has_a_gradient():
    rows, weight = torch.ones(6, 2), torch.full((2,), 3.0, requires_grad=True)
    first, second = (batch for (batch,) in cut([rows], [4, 2]))

    first.mul_(weight)
    second[:, 0] = weight[0]
    first.sum().backward()

    assert weight.grad.tolist() == [4.0, 4.0]
    assert second.tolist() == [[3.0, 1.0]] * 2
