"""A training in one line of a notebook, and predictions on placed collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.collective.api import run_on_ranks
from workbench.errors import InvalidRequest
from workbench.placement.layout import AlignedBlocks
from workbench.torch.context import require_torch

if TYPE_CHECKING:
    from distributed import Client


def fit(
    module: Any,
    loss: Callable[[Any, Any], Any],
    X: Any,
    y: Any,
    *,
    epochs: int = 10,
    size: int = 256,
    optimizer: Callable[[Any], Any] | None = None,
    schedule: Callable[[Any], Any] | None = None,
    validation: tuple[Any, Any] | None = None,
    patience: int | None = None,
    callback: Callable[[int, dict[str, float]], object] | None = None,
    checkpoint: str | None = None,
    seed: int = 0,
    shuffle: str | None = "exchange",
    name: str = "training",
    client: Client | None = None,
    limit: str = "1 GiB",
) -> list[dict[str, float]]:
    """Train a module of PyTorch on placed blocks, on all ranks that have them.

    Parameters
    ----------
    module : torch.nn.Module
        Is trained: its weights are those of the last epoch afterwards.
    loss : callable
        Of outputs and labels, the mean over the rows, as ``torch.nn.functional.cross_entropy``.
    X, y : placed collection of shape (rows, ...)
        As `place` returned them. Real numbers are converted to the precision of the module, batch by batch.
    epochs : int, default=10
        At most; also those that a checkpoint has.
    size : int, default=256
        Rows of a batch on all ranks together, at least one for each.
    optimizer : callable, default=None
        Makes an optimizer of the weights, as ``functools.partial(torch.optim.SGD, lr=0.1)``; None: that of
        ``torch.optim.Adam``.
    schedule : callable, default=None
        Makes a scheduler of ``torch.optim.lr_scheduler`` of the optimizer, which takes a step after each epoch.
    validation : tuple of placed collections, default=None
        Rows and labels whose loss is measured after each epoch: other ones than X has, on the same ranks.
    patience : int, default=None
        Epochs without a lower loss, of the validation if there is one, after which the training ends.
    callback : callable, default=None
        Is called on the first rank with the number of the epoch and its record; the training ends if True is returned.
    checkpoint : str, default=None
        File on a file system of all ranks, replaced in one step after each epoch. If the file exists, the training
        continues after its last epoch, on any number of ranks.
    seed : int, default=0
        Of the order of the rows, and of what layers draw.
    shuffle : {"exchange", "local"} or None, default="exchange"
        As of `batches`.
    name : str, default="training"
        Of the curves on the dashboard's page *Training*.
    client : distributed.Client, default=None
        Of the cluster; None: the current one.
    limit : str, default="1 GiB"
        How large the weights may be that travel to the notebook.

    Returns
    -------
    list of dict
        For each epoch its ``loss``, the mean of the batches, and ``validation_loss``.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed here, an option is not valid, or the file of `checkpoint` is damaged or has the
        state of another module or other options.
    PlacementError
        If X and y were not placed, or do not lie alike.

    Notes
    -----
    Gradients are averaged by ``torch.nn.parallel.DistributedDataParallel`` (Li et al., 2020), so each rank has all
    weights, and rank 0 writes the checkpoint; while it writes, it holds a copy of weights and optimizer. With
    ``shuffle="exchange"`` the losses are the same on any number of ranks but for rounding, unless layers draw numbers
    or look at the batch.

    Examples
    --------
    >>> history = fit(net, torch.nn.functional.cross_entropy, X, y, epochs=5)  # doctest: +SKIP
    """
    require_torch()
    if epochs < 1 or (patience is not None and patience < 1):
        raise InvalidRequest(f"epochs={epochs}, patience={patience}: choose whole numbers above zero")
    from workbench.torch.epochs import Plan, train

    plan = Plan(loss, epochs, size, optimizer, schedule, patience, callback, checkpoint, seed, shuffle, name)
    rows = () if validation is None else map(AlignedBlocks, validation)
    state, history = run_on_ranks(train, module, plan, X, y, *rows, result="root", client=client, limit=limit)
    module.load_state_dict(state)
    return list(history)


def predict(module: Any, X: Any, *, size: int = 1024, client: Client | None = None) -> Any:
    """Return what a module makes of each row of a placed collection, where the rows are.

    Parameters
    ----------
    module : torch.nn.Module
        Of which each rank gets a copy.
    X : placed collection of shape (rows, ...)
        As `place` returned it.
    size : int, default=1024
        Rows that a rank passes to the module at once.
    client : distributed.Client, default=None
        Of the cluster; None: the current one.

    Returns
    -------
    dask.array.Array
        Of shape (rows, ...), placed as X.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed here.
    PlacementError
        If X was not placed.

    Examples
    --------
    >>> classes = predict(net, X).argmax(axis=1)  # doctest: +SKIP
    """
    require_torch()
    from workbench.torch.epochs import outputs

    return run_on_ranks(outputs, module, size, X, result="blocks", client=client)
