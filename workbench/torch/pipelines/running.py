"""The part of a pipeline on one rank: its stages, steps, and gradients that the copies of a stage share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from workbench.errors import InvalidRequest
from workbench.torch.feeding import tensor
from workbench.torch.pipelines.costs import measured
from workbench.torch.pipelines.layers import Layers, materialize, release
from workbench.torch.pipelines.plan import Layout, Plan

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Bytes of gradients that travel together: those of a bucket of DDP.
_BUCKET = 25 << 20


def pipeline(
    module: nn.Module,
    sample: Any,
    loss: Loss,
    *,
    size: int,
    stages: int = 2,
    replicas: int | None = None,
    microbatches: int = 8,
    schedule: str = "1f1b",
    seed: int = 0,
) -> Pipeline:
    """Cut a module into stages that train on different ranks; collective, in a `distributed` block.

    Parameters
    ----------
    module : torch.nn.Module
        Module that takes one tensor of shape (rows, ...) and returns one: an `nn.Sequential`, or a module whose
        ``forward`` torch.fx can trace. The same on all ranks, on the CPU or on the meta device. The weights of the
        other ranks' stages move to the meta device, so this rank no longer holds them.
    sample : block or tensor of shape (rows, ...)
        Rows as the module takes them, of which the first ones are measured on rank 0.
    loss : callable
        Function of outputs and labels that returns the mean over the rows, as ``torch.nn.functional.cross_entropy``.
    size : int
        Rows of a batch on all ranks together, as in `batches`.
    stages : int, default=2
        Number of parts of the module.
    replicas : int, default=None
        Number of pipelines that share each batch. None: the number of ranks over `stages`.
    microbatches : int, default=8
        Parts of a batch that pass the stages one after the other, in all replicas together.
    schedule : {"1f1b", "gpipe", "bidirectional"}, default="1f1b"
        ``"gpipe"``: all forward passes, then all backward passes (Huang et al., 2019). ``"1f1b"``: a stage alternates
        between both, and holds the activations of fewer microbatches (Narayanan et al., 2019). ``"bidirectional"``:
        half of the microbatches pass a second copy of the module whose stages are on the ranks in opposite order, each
        half by 1F1B. Each rank holds two stages, and the second half begins on the ranks where the first one has ended
        (GEMS-MAST: Jain et al., 2020).
    seed : int, default=0
        Seed of weights on the meta device, which ``reset_parameters`` of their modules initializes.

    Returns
    -------
    Pipeline
        The part of this rank. Its text is the plan: where the module is cut, and what each rank holds.

    Raises
    ------
    InvalidRequest
        On all ranks, if torch.distributed is not initialized, the ranks, rows or microbatches cannot be shared evenly,
        or the module cannot be cut into so many stages.

    Notes
    -----
    The stages run by ``torch.distributed.pipelining``. Ranks *k* `stages* to *(k + 1)* `stages` - 1 are replica *k*. The
    layers of a microbatch see the same rows in each layout, so the losses are the same but for rounding, also with
    ``BatchNorm``, whose running means are those of the first replica. Gradients are added after the last backward pass, as
    the collectives of a rank do not overlap with its computation.

    Examples
    --------
    >>> with distributed(comm):  # doctest: +SKIP
    ...     net = pipeline(resnet(110), X, cross_entropy, size=64, stages=4)
    ...     optimizer = torch.optim.SGD(net.parameters(), 0.1)
    ...     for rows, labels in batches(comm, X, y, size=64):
    ...         loss = net.step(rows, labels)
    ...         optimizer.step()
    """
    if not dist.is_initialized():
        raise InvalidRequest(
            "torch.distributed is not initialized: call pipeline() in a `with distributed(comm):` block"
        )
    layout = Layout.of(
        dist.get_world_size(),
        size=size,
        stages=stages,
        replicas=replicas,
        microbatches=microbatches,
        schedule=schedule,
    )
    layers = Layers(module, 1 / stages)
    rows = tensor(sample)
    if not len(rows):
        raise InvalidRequest("sample has no rows: pass one row or more of the input of the module")
    rows = _fitting(rows[torch.arange(layout.rows) % len(rows)], module)
    found: list[Any] = [_plan(layout, layers, rows) if dist.get_rank() == 0 else None]
    # The times are those of one rank, so that all ranks cut at the same layers.
    dist.broadcast_object_list(found)
    if isinstance(found[0], InvalidRequest):
        raise found[0]
    return Pipeline(module, layers, found[0], loss, tuple(rows.shape), rows.dtype, seed)


def _plan(layout: Layout, layers: Layers, rows: torch.Tensor) -> Plan | InvalidRequest:
    try:
        return Plan.of(layout, measured(layers, rows), [*layers.shared()])
    except InvalidRequest as error:
        return error


def _fitting(rows: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return real numbers in the precision of a module, and other values unchanged."""
    first = next(iter(module.parameters()), None)
    return rows if first is None or not rows.is_floating_point() else rows.to(first.dtype)


class Pipeline:
    """The stages of a module on this rank; made by `pipeline`.

    Attributes
    ----------
    plan : Plan
        Where the module is cut, and what each rank holds: ``plan.table()``, which is also the text of the object.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Layers,
        plan: Plan,
        loss: Loss,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        self.plan = plan
        layout = plan.layout
        self._replica, self._place = divmod(dist.get_rank(), layout.stages)
        self._loss, self._dtype = loss, dtype
        self._names = list(module.state_dict())
        indices = [layout.place(self._place, way) for way in range(layout.directions)]
        for number in chain(*(range(*plan.layers(index)) for index in indices)):
            materialize(layers.part(number, number + 1), seed + number)
        # The middle rank of an odd number has one stage of both directions.
        self._parts = {index: layers.part(*plan.layers(index)) for index in sorted(indices)}
        used = layers.part(0, len(layers)).state_dict()
        self._unused = {name: value for name, value in module.state_dict().items() if name not in used}
        release(module, nn.ModuleList(self._parts.values()))
        self._group: Any = None
        for replica in range(layout.replicas):
            group = dist.new_group([replica * layout.stages + place for place in range(layout.stages)])
            self._group = group if replica == self._replica else self._group
        self._copies = self._groups_of_copies()
        self._share_weights()
        shapes = [(shape, dtype), *(plan.microbatch(stage) for stage in range(layout.stages))]
        # Gradients pass between stages, and not to the rows.
        self._shapes = [
            torch.empty(each, dtype=kind, device="meta", requires_grad=number > 0)
            for number, (each, kind) in enumerate(shapes)
        ]
        self._ways = [
            _Way(self._parts[index], index, way, self._shapes[index : index + 2], plan.layout, loss, self._group)
            for way, index in enumerate(indices)
        ]

    def _groups_of_copies(self) -> dict[int, Any]:
        """Return the group of the ranks that have each stage of this rank; collective."""
        layout, groups = self.plan.layout, {}
        for stage in range(layout.stages):
            ranks = {
                replica * layout.stages + layout.place(stage, way)
                for replica in range(layout.replicas)
                for way in range(layout.directions)
            }
            group = dist.new_group(sorted(ranks)) if len(ranks) > 1 else None
            if dist.get_rank() in ranks:
                groups[stage] = group
        return groups

    def _share_weights(self) -> None:
        """Give all copies of a stage the weights of the first one."""
        for index, part in self._parts.items():
            for each in chain(part.parameters(), part.buffers()) if self._copies[index] else ():
                dist.broadcast(each.detach(), index, self._copies[index])

    def __repr__(self) -> str:
        return self.plan.table()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights of this rank, for an optimizer."""
        for _, weight in self.named_parameters():
            yield weight

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the weights of this rank with their names in the module."""
        for part in self._parts.values():
            yield from part.named_parameters()

    def step(self, rows: Any, labels: Any) -> float:
        """Pass a batch forward and backward, and set the gradients of the weights of this rank; collective.

        Parameters
        ----------
        rows : block or tensor of shape (size / ranks, ...)
            Part of this rank of the batch, as `batches` yields it.
        labels : block or tensor of shape (size / ranks, ...)
            Labels of the rows.

        Returns
        -------
        float
            Mean loss of the batch, on all ranks.

        Raises
        ------
        InvalidRequest
            If the rank does not pass its number of rows.
        """
        for weight in self.parameters():
            weight.grad = None
        inputs, targets = self._moved(rows, labels, len(self._ways))
        total = sum(way.step(inputs, targets) for way in self._ways)
        self._add_gradients()
        return self._mean(total)

    def evaluate(self, rows: Any, labels: Any) -> float:
        """Return the mean loss of a batch, without gradients, of the module in evaluation mode; collective.

        Parameters
        ----------
        rows, labels : block or tensor of shape (size / ranks, ...)
            As in `step`.
        """
        inputs, targets = self._moved(rows, labels, 1)
        part, each, total = self._parts[self._place], self.plan.layout.rows, 0.0
        training = {child: child.training for child in part.modules()}
        part.eval()
        with torch.no_grad():
            for start in range(0, self.plan.layout.size // self.plan.layout.replicas, each):
                passed = inputs[start : start + each] if self._place == 0 else self._received()
                passed = part(passed)
                if self._place == self.plan.layout.stages - 1:
                    total += float(self._loss(passed, targets[start : start + each]))
                else:
                    dist.send(passed, group=self._group, group_dst=self._place + 1)
        for child, mode in training.items():
            child.training = mode
        return self._mean(total)

    def _received(self) -> torch.Tensor:
        passed = torch.empty_like(self._shapes[self._place], device="cpu", requires_grad=False)
        dist.recv(passed, group=self._group, group_src=self._place - 1)
        return passed

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state of the whole module on rank 0, and nothing on other ranks; collective."""
        stages, state = self.plan.layout.stages, {}
        mine = {name: value.detach() for name, value in self._parts.get(self._place, nn.Module()).state_dict().items()}
        if dist.get_rank() == 0:
            state = self._unused | mine
            for source in range(1, stages):
                found: list[Any] = [None]
                dist.recv_object_list(found, source)
                state |= found[0]
        elif self._replica == 0:
            dist.send_object_list([mine], 0)
        return {name: state[name] for name in self._names if name in state}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load the state of this rank's stages from that of the whole module.

        Parameters
        ----------
        state : mapping of str to torch.Tensor
            State of the module on this rank. The names of other stages may be absent.
        """
        for part in self._parts.values():
            part.load_state_dict({name: state[name] for name in part.state_dict() if name in state})

    def _moved(self, rows: Any, labels: Any, ways: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Send the rows of this replica to the first stages, and the labels to the last ones."""
        rows, labels = tensor(rows), tensor(labels)
        each = self.plan.layout.size // dist.get_world_size()
        if len(rows) != each or len(labels) != each:
            raise InvalidRequest(
                f"rank {dist.get_rank()} passes {len(rows)} rows and {len(labels)} labels, and its part of a batch of "
                f"{self.plan.layout.size} are {each}: use batches(comm, ..., size={self.plan.layout.size})"
            )
        rows = rows.to(self._dtype) if rows.is_floating_point() else rows
        places = self.plan.layout.place
        firsts, lasts = ([places(stage, way) for way in range(ways)] for stage in (0, self.plan.layout.stages - 1))
        return self._to(firsts, rows), self._to(lasts, labels)

    def _to(self, ends: Sequence[int], block: torch.Tensor) -> torch.Tensor:
        """Send an equal share of the rows of all blocks to each of some ranks; return the share of this rank."""
        stages, each = self.plan.layout.stages, len(block)
        share = stages * each // len(ends)
        sent, received = [block[:0]] * stages, [block[:0]] * stages
        for number, end in enumerate(ends):
            # The rows of rank r are those from r * each on.
            parts = [
                range(max(share * number, rank * each), min(share * (number + 1), (rank + 1) * each))
                for rank in range(stages)
            ]
            mine = parts[self._place]
            sent[end] = block[mine.start - self._place * each :][: len(mine)]
            if end == self._place:
                received = [block.new_empty((len(part), *block.shape[1:])) for part in parts]
        dist.all_to_all(received, sent, self._group)
        return torch.cat(received)

    def _add_gradients(self) -> None:
        """Make the gradients those of the mean loss of the batch: the sum over microbatches of all copies."""
        for index, part in self._parts.items():
            # The copies have the same weights, so stages that two ranks share are reduced in the same order.
            for gradients in _buckets(part):
                vector = parameters_to_vector(gradients)
                if self._copies[index]:
                    dist.all_reduce(vector, group=self._copies[index])
                vector_to_parameters(vector.div_(self.plan.layout.microbatches), gradients)

    def _mean(self, total: float) -> float:
        losses = torch.tensor([total], dtype=torch.float64)
        dist.all_reduce(losses)
        return losses.item() / self.plan.layout.microbatches


def _buckets(part: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Yield the gradients of a stage in groups of one type and a limited size."""
    bucket: list[torch.Tensor] = []
    for gradient in (weight.grad for weight in part.parameters() if weight.grad is not None):
        if bucket and (bucket[0].dtype != gradient.dtype or sum(each.nbytes for each in bucket) > _BUCKET):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


class _Way:
    """A copy of the module on the ranks of a pipeline, in one direction."""

    def __init__(
        self,
        part: nn.Module,
        index: int,
        way: int,
        shapes: Sequence[torch.Tensor],
        layout: Layout,
        loss: Loss,
        group: Any,
    ) -> None:
        taken, made = shapes
        self._stage = PipelineStage(
            part, index, layout.stages, torch.device("cpu"), taken, made, group=group
        )
        self._stage.stage_index_to_group_rank = {stage: layout.place(stage, way) for stage in range(layout.stages)}
        kind = ScheduleGPipe if layout.schedule == "gpipe" else Schedule1F1B
        # The pipeline divides the gradients, when those of all copies are added.
        self._schedule = kind(self._stage, layout.each, loss_fn=loss, scale_grads=False)
        # Without this argument, which older releases do not have, the last stage keeps the outputs of all microbatches.
        known = inspect.signature(self._schedule.step).parameters
        self._options: dict[str, Any] = {"return_outputs": False} if "return_outputs" in known else {}

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Pass the microbatches of this copy; return the sum of their losses, if the last stage is here."""
        losses: list[torch.Tensor] = []
        given = (inputs,) if self._stage.is_first else ()
        wanted = {"target": targets, "losses": losses} if self._stage.is_last else {}
        try:
            self._schedule.step(*given, **wanted, **self._options)
        except RuntimeError as error:
            # Torch wraps what the module of the user raises.
            if isinstance(error.__cause__, Exception):
                raise error.__cause__ from None
            raise
        return float(sum(each.detach() for each in losses))
