"""A training in one line of a notebook, and predictions on placed collections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench import run_on_ranks
from workbench.errors import InvalidRequest
from workbench.placement.place import AlignedBlocks
from workbench.torch.context import require_torch
from workbench.torch.feeding import require_seed
from workbench.torch.streams import Stream

if TYPE_CHECKING:
    from distributed import Client


def fit(
    module: Any,
    loss: Callable[[Any, Any], Any],
    X: Any,
    y: Any = None,
    *,
    epochs: int = 10,
    size: int = 256,
    optimizer: Callable[[Any], Any] | None = None,
    schedule: Callable[[Any], Any] | None = None,
    validation: tuple[Any, Any] | Stream | None = None,
    patience: int | None = None,
    callback: Callable[[Mapping[str, float]], object] | None = None,
    checkpoint: str | None = None,
    seed: int = 0,
    shuffle: str | None = "exchange",
    name: str = "training",
    device: str | None = None,
    client: Client | None = None,
    limit: str = "1 GiB",
) -> list[dict[str, float]]:
    """Train a module of PyTorch on all ranks that have the blocks of `X`.

    Parameters
    ----------
    module : torch.nn.Module
        Module to train. Afterwards it has the weights of the last epoch.
    loss : callable
        Function of outputs and labels that returns the mean over the rows, as ``torch.nn.functional.cross_entropy``.
    X : placed collection of shape (rows, ...), or Stream
        Rows that `place` has returned, or a result of `stream` with labels. Real numbers are converted to the precision
        of the module, batch by batch.
    y : placed collection of shape (rows, ...), default=None
        Labels that `place` has returned. None: those of the stream.
    epochs : int, default=10
        Maximum number of epochs, including those of a checkpoint.
    size : int, default=256
        Rows of a batch on all ranks together, at least one for each rank.
    optimizer : callable, default=None
        Function of the weights that returns an optimizer, as ``functools.partial(torch.optim.SGD, lr=0.1)``. None:
        ``torch.optim.Adam``.
    schedule : callable, default=None
        Function of the optimizer that returns a scheduler of ``torch.optim.lr_scheduler``; a step follows each epoch.
    validation : tuple of placed collections, or Stream, default=None
        Other rows and labels, on the same ranks if they are placed, whose loss is measured after each epoch.
    patience : int, default=None
        Number of epochs without a lower loss after which the training ends; the loss of `validation` if given.
    callback : callable, default=None
        Called on the first rank after each epoch, as the callbacks of estimators in the notebook, with a mapping of
        ``iteration``, ``loss`` and, with `validation`, ``validation_loss``. The training ends if it returns True.
    checkpoint : str, default=None
        File on a file system of all ranks, replaced in one step after each epoch. If the file exists, the training
        continues after its last epoch, on any number of ranks.
    seed : int, default=0
        Seed of the order of the rows and of layers that draw numbers.
    shuffle : {"exchange", "local"} or None, default="exchange"
        See `batches`.
    name : str, default="training"
        Name of the curves on the dashboard's page *Training*.
    device : str, default=None
        Device of PyTorch on each rank, for example ``"cuda"``, where the module and each batch are copied to. None: the
        CPU, or the device of the module.
    client : distributed.Client, default=None
        Client of the cluster. None: the current client.
    limit : str, default="1 GiB"
        Maximum size of the weights that are sent to the notebook.

    Returns
    -------
    list of dict
        For each epoch ``loss``, the mean over the batches, and ``validation_loss``.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed in this process, rows have no labels, an option is not valid, or the file of
        `checkpoint` is damaged or has the state of another module or other options, or a rank cannot use the device.
    PlacementError
        If `X` and `y` are not placed, or have different layouts.

    Notes
    -----
    Gradients are averaged by ``torch.nn.parallel.DistributedDataParallel`` (Li et al., 2020), so each rank has all
    weights, and rank 0 writes the checkpoint; while it writes, it holds a copy of weights and optimizer. With
    ``shuffle="exchange"`` the losses are the same on any number of ranks, except for rounding, unless layers draw
    numbers or depend on the batch, or the loss divides by another number than that of the rows, as ``cross_entropy``
    with ``weight`` or ``ignore_index``.

    Examples
    --------
    >>> import torch
    >>> rows = np.random.default_rng(0).normal(size=(400, 2)).astype("float32")
    >>> X, y = workbench.place(rows, (rows[:, 0] > 0).astype(int))
    >>> history = fit(torch.nn.Linear(2, 2), torch.nn.functional.cross_entropy, X, y, size=40, epochs=2)
    >>> history[1]["loss"] < history[0]["loss"]
    True
    """
    require_torch()
    if epochs < 1 or (patience is not None and patience < 1):
        raise InvalidRequest(
            f"epochs={epochs}, patience={patience} is not valid. Choose whole numbers above zero.", option="epochs"
        )
    require_seed(seed)
    _require_labels("X", X.empty if isinstance(X, Stream) else (X, y))
    if validation:
        _require_labels("validation", validation.empty if isinstance(validation, Stream) else validation)
    from workbench.torch.epochs import Plan, train

    plan = Plan(loss, epochs, size, optimizer, schedule, patience, callback, checkpoint, seed, shuffle, name, device)
    rows = [validation] if isinstance(validation, Stream) else map(AlignedBlocks, validation or ())
    # Other batches are copies of rows, into which a module may write.
    writes = shuffle is None or validation is not None
    state, history = run_on_ranks(
        train, module, plan, X, y, *rows, result="root", client=client, limit=limit, writes=writes
    )
    module.load_state_dict(state)
    return list(history)


def _require_labels(name: str, columns: Sequence[Any]) -> None:
    if len(columns) < 2 or columns[1] is None:
        raise InvalidRequest(
            f"{name} has no labels. Pass placed rows and their labels, or the result of stream(rows, labels).",
            option=name,
        )


def predict(module: Any, X: Any, *, size: int = 1024, device: str | None = None, client: Client | None = None) -> Any:
    """Apply a module to the rows of a placed collection, on the ranks that have the rows.

    Parameters
    ----------
    module : torch.nn.Module
        Module that is copied to each rank.
    X : placed collection of shape (rows, ...)
        Result of `place`.
    size : int, default=1024
        Rows that a rank passes to the module in one call.
    device : str, default=None
        Device of PyTorch on each rank, as for `fit`.
    client : distributed.Client, default=None
        Client of the cluster. None: the current client.

    Returns
    -------
    dask.array.Array
        Outputs of shape (rows, ...), with the layout of `X`; of bfloat16, which NumPy does not have, in float32.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed in this process, a rank cannot use the device, or the module returns anything else
        than one tensor with a row for each row.
    PlacementError
        If `X` is not placed.

    Examples
    --------
    >>> import torch
    >>> X = workbench.place(np.array([[0, 1], [1, 0], [2, 3], [5, 4]], "float32"))
    >>> predict(torch.nn.Identity(), X).argmax(axis=1).compute()
    array([1, 0, 1, 0])
    """
    require_torch()
    from workbench.torch.epochs import outputs

    return run_on_ranks(outputs, module, size, X, device, result="blocks", client=client)
