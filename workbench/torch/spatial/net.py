"""A net on strips of images, with all rules."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import InvalidRequest
from workbench.torch.buffers import array, flat, write
from workbench.torch.spatial import (  # noqa: F401  (modules with rules)
    convolution,
    elementwise,
    normalization,
    resize,
)
from workbench.torch.spatial.exchange import AXIS
from workbench.torch.spatial.layout import bounds
from workbench.torch.spatial.strip import Net, Strip
from workbench.torch.spatial.sums import averaged
from workbench.torch.spatial.windowed import redivided

if TYPE_CHECKING:
    from mpi4py import MPI


class Strips(Net):
    """A module on strips of images; `workbench.torch.strips` makes it.

    Parameters
    ----------
    module : torch.nn.Module
        The net.
    comm : mpi4py.MPI.Intracomm
        Communicator of the ranks.

    Notes
    -----
    Layers get a `Strip` in the place of a tensor. Convolutions and poolings exchange the rows at the edges of the
    strips (halos), and their gradients in ``backward``; normalizations exchange means. For ``backward`` a layer keeps
    its strip and the halos. The gradient of each weight is that of one process with the whole image. The gradients are
    summed over the ranks at the end of ``backward``, in one message for each type of elements. All ranks have to call
    the module, functions of its results, and ``backward`` in one order.

    Messages between two ranks have tag 31999 on `comm`.
    """

    def __init__(self, module: torch.nn.Module, comm: MPI.Intracomm) -> None:
        super().__init__()
        self.module, self.comm = module, comm
        for tensor in chain(module.parameters(), module.buffers()):
            row = flat(tensor)
            comm.Bcast(array(row))
            write(row, tensor)

    def rows(self, height: int) -> slice:
        """Return the rows of this rank in images of a height.

        Parameters
        ----------
        height : int
            Rows of an image.
        """
        return slice(*bounds(height, self.comm.size)[self.comm.rank :][:2])

    def forward(self, *inputs: Any) -> Any:
        """Return the result for images of which each rank passes its rows; collective.

        Parameters
        ----------
        *inputs : torch.Tensor
            Rows of this rank, of shape (batch, channels, rows, ...). Ranks may pass other rows than those of `rows`, as
            long as they are consecutive in rank order; the difference is exchanged.

        Returns
        -------
        Strip or torch.Tensor
            What the module returns: a `Strip` where the image is divided, a tensor that every rank has whole after a
            reduction or an adaptive pooling over the rows.

        Raises
        ------
        InvalidRequest
            If a layer cannot be computed on strips, with the name of the layer.
        """
        given = [self._divided(each) if isinstance(each, torch.Tensor) else each for each in inputs]
        if not torch.is_grad_enabled():
            return self.module(*given)
        trained = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        return torch.func.functional_call(self.module, averaged(self.comm, trained), tuple(given))

    def _divided(self, rows: torch.Tensor) -> Strip:
        if rows.dim() <= AXIS:
            raise InvalidRequest(
                f"a tensor of shape {tuple(rows.shape)} has no rows. Pass images of shape (batch, channels, rows, ...)."
            )
        have = [0]
        for count in self.comm.allgather(rows.shape[AXIS]):
            have.append(have[-1] + count)
        if rows.requires_grad:
            # The sum of the losses of all ranks is differentiated: see `sums`.
            rows = rows.view_as(rows)
            rows.register_hook(lambda gradient: gradient / self.comm.size)
        return Strip(redivided(self.comm, rows, have), have[-1], self.comm)
