"""Nets on strips of images: the function for users, which loads neither PyTorch nor MPI before its call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.torch.context import require_torch

if TYPE_CHECKING:
    from mpi4py import MPI

    from workbench.torch.spatial.net import Strips


def strips(module: Any, comm: MPI.Intracomm) -> Strips:
    """Return a module that computes on images of which each rank has a strip of rows; collective.

    Parameters
    ----------
    module : torch.nn.Module
        Convolutional net for images of shape (batch, channels, height, width), for volumes (batch, channels, depth,
        height, width) or for sequences (batch, channels, length). The first axis after the channels is divided. The
        ranks get the weights of the first rank.
    comm : mpi4py.MPI.Intracomm
        Communicator of the call, or a part of it.

    Returns
    -------
    Strips
        Module with the weights of `module`. It is called with the rows of the rank.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed.

    Examples
    --------
    >>> import torch
    >>> @workbench.spmd
    ... def train(comm, net, images, masks):
    ...     model = strips(net, comm)
    ...     mine = model.rows(images.shape[2])
    ...     rows, labels = torch.from_numpy(images[:, :, mine]), torch.from_numpy(masks[:, mine])
    ...     loss = torch.nn.functional.cross_entropy(model(rows), labels)
    ...     loss.backward()
    ...     return rows.shape
    >>> images, masks = np.ones((1, 3, 64, 16), "float32"), np.zeros((1, 64, 16), int)
    >>> train(torch.nn.Conv2d(3, 2, 3, padding=1), images, masks)[0]
    torch.Size([1, 3, 16, 16])
    """
    require_torch()
    # PyTorch and MPI are loaded on ranks only.
    from workbench.torch.spatial.net import Strips

    return Strips(module, comm)
