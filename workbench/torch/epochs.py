"""The part of a fit on each rank: the loop over epochs and batches, and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workbench import report
from workbench.errors import InvalidRequest
from workbench.gpu.tensors import on_device
from workbench.torch import checkpoints
from workbench.torch.context import distributed
from workbench.torch.feeding import batches
from workbench.torch.tensors import tensor

if TYPE_CHECKING:
    import numpy.typing as npt
    from mpi4py import MPI

Record = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """How a module is trained; the fields are the parameters of `workbench.torch.fit`."""

    loss: Callable[..., Any]
    """Function of outputs and labels, and of the weights of the rows if they exist."""
    epochs: int
    size: int
    optimizer: Callable[[Any], Any] | None
    schedule: Callable[[Any], Any] | None
    patience: int | None
    callback: Callable[[Record], object] | None
    checkpoint: str | None
    seed: int
    shuffle: str | None
    name: str
    device: str | None = None
    """Device of PyTorch; None: where the module is."""

    def order(self, epoch: int) -> dict[str, Any]:
        """Return the options of the batches of an epoch."""
        return {"size": self.size, "seed": hash((self.seed, epoch)) % 2**32, "shuffle": self.shuffle}


class Alone:
    """The communicator of a training in this process, which needs no MPI."""

    rank, size = 0, 1

    def allgather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return [value]

    def allreduce(self, value: Any) -> Any:
        """Return the sum of the values of all ranks."""
        return value

    def bcast(self, value: Any) -> Any:
        """Return the value of rank 0."""
        return value


def train(
    comm: MPI.Intracomm, module: Any, plan: Plan, X: Any, y: Any, *validation: Any
) -> tuple[dict[str, Any], list[Record]]:
    """Train a module on the blocks of all ranks; return its state and a record of each epoch."""

    def on_epoch(epoch: int, record: Record) -> bool:
        report(epoch, name=plan.name, **record)
        ends = plan.callback is not None and plan.callback({"iteration": epoch + 1, **record})
        # Comparisons of numbers of NumPy return a bool of NumPy.
        return isinstance(ends, bool | np.bool_) and bool(ends)

    with distributed(comm):
        history = run(comm, module, plan, (X, y), validation=validation, on_epoch=on_epoch)
    return state(module), history


def state(module: Any) -> dict[str, Any]:
    """Return the state of a module without gradients, in the memory of the host."""
    return {name: value.detach().cpu() for name, value in module.state_dict().items()}


def run(
    comm: MPI.Intracomm | Alone,
    module: Any,
    plan: Plan,
    rows: tuple[Any, ...],
    *,
    validation: tuple[Any, ...],
    on_epoch: Callable[[int, Record], bool],
) -> list[Record]:
    """Train a module, and return a record of each epoch.

    Parameters
    ----------
    comm
        In a `distributed` block, or `Alone`.
    module, plan
        The module to train, and the plan.
    rows, validation
        The blocks of rows, labels and, if they exist, weights.
    on_epoch
        Called on rank 0 with the number of each epoch and its record; the training ends if it returns True.
    """
    _move(module, plan.device)
    # DDP refuses a module without weights to train, with an error of torch.
    model = module if isinstance(comm, Alone) else DistributedDataParallel(module, gradient_as_bucket_view=True)
    weights = list(model.parameters())
    optimizer = torch.optim.Adam(weights) if plan.optimizer is None else plan.optimizer(weights)
    schedule = None if plan.schedule is None else plan.schedule(optimizer)
    kept = {"module": module, "optimizer": optimizer} | ({} if schedule is None else {"schedule": schedule})
    options = checkpoints.described(kept, size=plan.size, seed=plan.seed, shuffle=plan.shuffle, loss=plan.loss)
    history = checkpoints.restored(comm, plan.checkpoint, kept, options)
    while len(history) < plan.epochs and not _is_over(history, plan.patience):
        epoch = len(history)
        # Dropout draws different numbers on each rank, and the same numbers after a resume.
        with torch.random.fork_rng(devices=_gpus(module)):
            torch.manual_seed(hash((plan.seed, epoch, comm.rank)))
            parts = batches(comm, *rows, **plan.order(epoch))  # type: ignore[arg-type]  # `Alone` has the methods that it calls
            record = {"loss": _epoch(comm, model, optimizer, plan, parts)}
        if validation:
            _share_buffers(comm, module)
            record["validation_loss"] = _mean_loss(comm, module, plan, *validation)
        if schedule is not None:
            # The one schedule that depends on the loss.
            is_on_plateau = isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
            schedule.step(*[_watched(record)] * is_on_plateau)
        history.append(record)
        stop = False
        if comm.rank == 0:
            stop = on_epoch(epoch, record)
            checkpoints.save(plan.checkpoint, kept, options, history)
        if comm.bcast(stop):
            break
    return history


def _epoch(comm: MPI.Intracomm | Alone, model: Any, optimizer: Any, plan: Plan, parts: Iterator[Any]) -> float:
    """Take a step for each batch; return the mean of their losses."""
    model.train()
    total: Any = 0.0
    steps = 0
    for batch in parts:
        rows, *others = (_fitting(part, model) for part in batch)
        optimizer.zero_grad()
        loss = plan.loss(model(rows), *others)
        if plan.size % comm.size:
            # Ranks have different numbers of rows, and the mean over the ranks must be the mean over the rows.
            loss = loss * (len(rows) * comm.size / plan.size)
        loss.backward()
        optimizer.step()
        # On a GPU, the sum does not wait for each step.
        total = total + loss.detach().double()
        steps += 1
    mean: float = comm.allreduce(float(total)) / comm.size / steps
    return mean


def _share_buffers(comm: MPI.Intracomm | Alone, module: Any) -> None:
    """Give all ranks the buffers of the first one, such as running means, which are those of the trained module."""
    for buffer in module.buffers() if comm.size > 1 else ():
        dist.broadcast(buffer, 0)


def _mean_loss(comm: MPI.Intracomm | Alone, module: Any, plan: Plan, *blocks: Any) -> float:
    """Return the mean loss of the rows of all ranks; collective."""
    module.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches(comm, *blocks, size=plan.size, shuffle=None, drop_last=False):  # type: ignore[arg-type]  # as above
            rows, *others = (_fitting(part, module) for part in batch)
            if not len(rows):
                continue  # the mean of no rows is not a number
            total += float(plan.loss(module(rows), *others)) * len(rows)
            count += len(rows)
    mean: float = comm.allreduce(total) / comm.allreduce(count)
    return mean


def _fitting(part: Any, module: Any) -> Any:
    """Return numbers on the device of the module, and real numbers in its precision."""
    first = next(iter(module.parameters()), None)
    return part if first is None else part.to(first.device, first.dtype if part.is_floating_point() else None)


def _move(module: Any, device: str | None) -> None:
    """Move a module to a device of PyTorch, if one is named."""
    if device is not None:
        on_device(torch.empty(0), device)  # raises the error of a device that cannot be used
        module.to(device)


def _gpus(module: Any) -> list[torch.device]:
    """Return the GPUs with weights of a module, which have generators of random numbers."""
    return list({weight.device for weight in module.parameters() if weight.is_cuda})


def _is_over(history: list[Record], patience: int | None) -> bool:
    """Return whether the loss has not decreased for `patience` epochs."""
    if patience is None or not history:
        return False
    # No number is larger or smaller than nan, which would remain the lowest loss.
    losses = [math.inf if math.isnan(loss := _watched(record)) else loss for record in history]
    return len(losses) - 1 - losses.index(min(losses)) >= patience


def _watched(record: Record) -> float:
    """Return the loss that ends a training and that lowers the rate: that of the validation if it exists."""
    return record.get("validation_loss", record["loss"])


def require_tensor(found: Any) -> Any:
    """Return what a module has returned, if that is one tensor; otherwise raise InvalidRequest."""
    if not isinstance(found, torch.Tensor):
        raise InvalidRequest(
            f"the module returned {type(found).__name__}, not one tensor. Pass a module that returns one tensor with a "
            "row for each row of its input."
        )
    return found


def as_array(found: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; of bfloat16, which NumPy does not have, in float32."""
    found = found.cpu()
    result: npt.NDArray[Any] = (found.float() if found.dtype == torch.bfloat16 else found).numpy()
    return result


def outputs(_: Any, module: Any, size: int, X: Any, device: str | None = None) -> npt.NDArray[Any]:
    """Return the outputs of a module for the rows of a block."""
    _move(module, device)
    module.eval()
    parts = []
    given = tensor(X)
    with torch.no_grad():
        # Many modules refuse a batch without rows.
        for rows in (given if len(given) else given.new_zeros((1, *given.shape[1:]))).split(size):
            parts.append(require_tensor(module(_fitting(rows, module))))
            if parts[-1].shape[:1] != rows.shape[:1]:
                raise InvalidRequest(
                    f"the module returned outputs of shape {tuple(parts[-1].shape)} for {len(rows)} rows. Pass a "
                    "module that returns a row for each row of its input."
                )
    return as_array(torch.cat(parts)[: len(given)])
