"""The part of a rank in the fit of a neural network: `workbench.torch.epochs.run` on its checked rows."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from workbench.errors import InvalidRequest
from workbench.ml.engine.parts import weighed
from workbench.ml.labels import classes_of, classes_of_both, codes_of
from workbench.torch.context import distributed
from workbench.torch.epochs import Alone, Plan, Record, require_tensor, run, state


def made(module: Any, shape: tuple[int, ...], outputs: int, seed: int) -> torch.nn.Module:
    """Return a copy of the module of the user, or a new module for rows of this shape, whose weights the seed draws."""
    if isinstance(module, torch.nn.Module):
        return copy.deepcopy(module)
    features = shape[1] if len(shape) == 2 else tuple(shape[1:])
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
    layers = torch.nn.Linear(int(np.prod(features)), 100), torch.nn.ReLU(), torch.nn.Linear(100, outputs)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def _loss(loss: Callable[..., Any], columns: tuple[int, ...], outputs: Any, targets: Any, weights: Any = None) -> Any:
    """Return the weighted mean of a loss of outputs that have these columns, apart from axes of length 1."""
    require_tensor(outputs)
    shape = len(targets), *columns
    if [length for length in outputs.shape if length != 1] != [length for length in shape if length != 1]:
        raise InvalidRequest(
            f"the module returned outputs of shape {tuple(outputs.shape)} where {shape} was expected. The number of "
            f"outputs of the last layer must be {math.prod(columns)}."
        )
    outputs = outputs.reshape(shape)
    if weights is None:
        return loss(outputs, targets)
    if hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
        each = loss(outputs, targets)
    else:
        each = loss(outputs, targets, reduction="none")
    if len(each.shape) == 0 or len(each) != len(weights):
        raise InvalidRequest(
            "the loss returned no number for each row, which weights of rows need. Pass a loss of torch.nn.functional, "
            "or a loss that takes reduction='none'."
        )
    return (each.reshape(len(weights), -1).mean(1) * weights).mean()


@dataclasses.dataclass
class NetPart:
    """The checked rows of a rank, with targets, weights or None, and the number of their first row."""

    plan: Plan
    module: Any
    validation: float | None
    classify: bool
    X: Any
    y: Any
    weight: Any
    start: int

    def training(self) -> Callable[..., Any]:
        """Return the function that trains on all ranks, for `workbench.ml.engine.parts.ConnectedParts.together`."""
        return self._train

    def _train(self, comm: Any, report: Callable[[Mapping[str, Any]], None] | None) -> tuple[Any, ...]:
        with nullcontext() if comm is None else distributed(comm):
            return self._train_on(Alone() if comm is None else comm, report)

    def _train_on(self, comm: Any, report: Callable[[Mapping[str, Any]], None] | None) -> tuple[Any, ...]:
        classes, y = None, self.y
        if self.classify:
            classes = functools.reduce(classes_of_both, comm.allgather(classes_of(y)))
            y = codes_of(y, classes).astype(np.int64)
        else:
            y = np.asarray(y, self.X.dtype)
        columns = y.shape[1:] if classes is None else (len(classes),)
        module = made(self.module, self.X.shape, math.prod(columns), self.plan.seed)
        rows, held = self._divided(comm, [each for each in (self.X, y, self.weight) if each is not None])
        # The mean of the weights becomes 1, so that the size of the steps does not depend on their unit.
        for part in (rows, held) if self.weight is not None else ():
            if part and ((total := comm.allreduce(float(part[2].sum()))) or part is rows):
                part[2] = part[2] * (comm.allreduce(len(part[2])) / weighed(total))
        # With fewer rows than ranks, `batches` names the rows and not this size.
        size = min(self.plan.size, max(comm.size, comm.allreduce(len(rows[0]))))
        plan = dataclasses.replace(self.plan, loss=functools.partial(_loss, self.plan.loss, columns), size=size)

        def on_epoch(epoch: int, record: Record) -> bool:
            if report is not None:
                report({"iteration": epoch + 1, **record})
            return False

        history = run(comm, module, plan, tuple(rows), validation=tuple(held), on_epoch=on_epoch)
        return state(module), history, math.prod(columns), classes

    def _divided(self, comm: Any, columns: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the columns for training and for validation; the same rows on any number of ranks."""
        if self.validation is None:
            return columns, []
        rows = comm.allreduce(len(self.X))
        held = math.ceil(self.validation * rows)
        if held >= rows:
            raise InvalidRequest(
                f"validation={self.validation} leaves none of {rows} rows for the training. Choose a smaller fraction."
            )
        is_held = np.zeros(rows, bool)
        is_held[np.random.default_rng(self.plan.seed).permutation(rows)[:held]] = True
        mine = is_held[self.start : self.start + len(self.X)]
        return [column[~mine] for column in columns], [column[mine] for column in columns]


def trained(parts: Any, _: None) -> Any:
    """Train on all parts together."""
    return parts.together("training")
