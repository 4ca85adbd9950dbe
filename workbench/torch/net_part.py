"""The rows of a rank in the fit of a neural network, and its training on all ranks."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workbench.errors import InvalidRequest
from workbench.ml.engine.parts import weighed
from workbench.ml.labels import classes_of, classes_of_both, codes_of
from workbench.torch.context import distributed
from workbench.torch.epochs import Alone, Plan, Record, require_tensor, run, state

if TYPE_CHECKING:
    from mpi4py import MPI

_Report = Callable[[Mapping[str, Any]], None]

HIDDEN = 100
"""Units of the hidden layer of the default network."""


@dataclass(frozen=True)
class Settings:
    """Module and plan of a training."""

    module: Any
    """A module, a function of features and outputs that returns a module, or None."""
    plan: Plan
    """Plan with the loss of the user."""
    validation: float | None
    """Fraction of the rows that is not used for training."""
    classify: bool
    """Whether targets are labels."""


@dataclass(frozen=True)
class Trained:
    """Result of a fit."""

    state: dict[str, Any]
    history: list[Record]
    outputs: int
    classes: Any
    """The labels, sorted; None for numbers."""


def made(module: Any, features: Any, outputs: int, seed: int) -> torch.nn.Module:
    """Return a new module: a copy of the module of the user, or one whose weights are drawn with the seed.

    Raises
    ------
    InvalidRequest
        If the function of the user returns anything else.
    """
    if isinstance(module, torch.nn.Module):
        return copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        new = (module or _perceptron)(features, outputs)
    if not isinstance(new, torch.nn.Module):
        raise InvalidRequest(
            f"module({features}, {outputs}) returned {type(new).__name__}. Return a torch.nn.Module with this number "
            "of features and of outputs."
        )
    return new


def _perceptron(features: Any, outputs: int) -> torch.nn.Module:
    layers = torch.nn.Linear(int(np.prod(features)), HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, outputs)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def row_of(X: Any) -> Any:
    """Return the number of features of the rows, or their shape if they have more than one axis."""
    return X.shape[1] if X.ndim == 2 else tuple(X.shape[1:])


class Loss:
    """The loss of a user, with weights of rows, after a check of the shape of the outputs.

    Parameters
    ----------
    loss
        Function of outputs and targets, with ``reduction="none"`` for the losses of rows.
    outputs
        Number of outputs of a row.
    classify
        Whether targets are numbers of classes.
    """

    def __init__(self, loss: Callable[..., Any], outputs: int, *, classify: bool) -> None:
        self._loss, self._outputs, self._classify = loss, outputs, classify

    def __call__(self, outputs: Any, targets: Any, weights: Any = None) -> Any:
        """Return the weighted mean over the rows."""
        outputs = as_targets(outputs, (len(targets), self._outputs) if self._classify else tuple(targets.shape))
        if weights is None:
            return self._loss(outputs, targets)
        each = self._of_rows(outputs, targets)
        if len(each.shape) == 0 or len(each) != len(weights):
            raise InvalidRequest(
                "the loss returned no number for each row, which weights of rows need. Pass a loss of "
                "torch.nn.functional, or a loss that takes reduction='none'."
            )
        return (each.reshape(len(weights), -1).mean(1) * weights).mean()

    def _of_rows(self, outputs: Any, targets: Any) -> Any:
        if hasattr(self._loss, "reduction"):
            loss = copy.copy(self._loss)
            loss.reduction = "none"
            return loss(outputs, targets)
        return self._loss(outputs, targets, reduction="none")


def as_targets(outputs: Any, shape: tuple[int, ...]) -> Any:
    """Return outputs in the shape of the targets; the shapes may differ by an axis of length 1.

    Raises
    ------
    InvalidRequest
        If the number of outputs is another one, or the outputs are no tensor.
    """
    require_tensor(outputs)
    if tuple(length for length in outputs.shape if length != 1) != tuple(length for length in shape if length != 1):
        raise InvalidRequest(
            f"the module returned outputs of shape {tuple(outputs.shape)} where {shape} was expected. The number of "
            f"outputs of the last layer must be {shape[1] if len(shape) > 1 else 1}."
        )
    return outputs.reshape(shape)


class NetPart:
    """The rows of a rank, their targets and weights.

    Parameters
    ----------
    settings
        Settings of the fit.
    X, y, weight
        Checked blocks; the weights may be None.
    start
        Number of the first row of the block among all rows.
    """

    def __init__(self, settings: Settings, X: Any, y: Any, weight: Any, start: int) -> None:
        self._settings, self._X, self._y, self._weight, self._start = settings, X, y, weight, start

    def training(self) -> Callable[..., Trained]:
        """Return the function that trains on all ranks, for `workbench.ml.engine.parts.ConnectedParts.together`."""
        return self._train

    def _train(self, comm: MPI.Intracomm | None, report: _Report | None) -> Trained:
        with nullcontext() if comm is None else distributed(comm):
            return self._train_on(Alone() if comm is None else comm, report)

    def _train_on(self, comm: MPI.Intracomm | Alone, report: _Report | None) -> Trained:
        settings = self._settings
        classes, targets = self._targets(comm)
        outputs = len(classes) if settings.classify else int(np.prod(targets.shape[1:]))
        module = made(settings.module, row_of(self._X), outputs, settings.plan.seed)
        columns = (self._X, targets) if self._weight is None else (self._X, targets, self._weight)
        rows, validation = self._divided(comm, columns)
        if self._weight is not None:
            total = weighed(comm.allreduce(float(rows[2].sum())))
            # The mean of the weights becomes 1, so that the size of the steps does not depend on their unit.
            rows = *rows[:2], rows[2] * (comm.allreduce(len(rows[2])) / total)
            if validation and (held := comm.allreduce(float(validation[2].sum()))):
                validation = *validation[:2], validation[2] * (comm.allreduce(len(validation[2])) / held)
        plan = dataclasses.replace(
            settings.plan,
            loss=Loss(settings.plan.loss, outputs, classify=settings.classify),
            # With fewer rows than ranks, `batches` names the rows and not this size.
            size=min(settings.plan.size, max(comm.size, comm.allreduce(len(rows[0])))),
        )

        def tell(epoch: int, record: Record) -> bool:
            if report is not None:
                report({"iteration": epoch + 1, **record})
            return False

        history = run(comm, module, plan, rows, validation=validation, tell=tell)
        return Trained(state(module), history, outputs, classes)

    def _targets(self, comm: MPI.Intracomm | Alone) -> tuple[Any, Any]:
        """Return the classes of all ranks and the class number of each row; or None and the numbers to predict."""
        if not self._settings.classify:
            return None, np.asarray(self._y, self._X.dtype)
        classes = functools.reduce(classes_of_both, comm.allgather(classes_of(self._y)))
        return classes, codes_of(self._y, classes).astype(np.int64)

    def _divided(self, comm: MPI.Intracomm | Alone, columns: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the columns for training and for validation; the same rows on any number of ranks."""
        share = self._settings.validation
        if share is None:
            return columns, ()
        rows = comm.allreduce(len(self._X))
        held = int(np.ceil(share * rows))
        if held >= rows:
            raise InvalidRequest(
                f"validation={share} leaves none of {rows} rows for the training. Choose a smaller fraction."
            )
        is_held = np.zeros(rows, bool)
        is_held[np.random.default_rng(self._settings.plan.seed).permutation(rows)[:held]] = True
        mine = is_held[self._start : self._start + len(self._X)]
        return tuple(column[~mine] for column in columns), tuple(column[mine] for column in columns)


def trained(parts: Any, _: None) -> Trained:
    """Train on all parts together."""
    result: Trained = parts.together("training")
    return result
