"""The part of a pipeline on one rank: its stages, steps, and gradients that the copies of a stage share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workbench.errors import InvalidRequest
from workbench.torch.pipelines.layers import Layers, initialize, mode, release
from workbench.torch.pipelines.plan import Plan
from workbench.torch.pipelines.rows import deliver
from workbench.torch.pipelines.way import Loss, Way
from workbench.torch.tensors import tensor

# Bytes of gradients that travel together: those of a bucket of DDP.
_BUCKET = 25 << 20


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
        *,
        seed: int,
        device: str,
    ) -> None:
        self.plan = plan
        self._device = torch.device(device)
        layout = plan.layout
        self._replica, self._place = divmod(dist.get_rank(), layout.stages)
        self._loss = loss
        self._names = list(module.state_dict())
        indices = [layout.place(self._place, way) for way in range(layout.directions)]
        # The middle rank of an odd number has one stage of both directions.
        self._parts = {
            index: initialize(layers.part(*plan.layers(index), cloned=plan.clones(index)), seed).to(self._device)
            for index in sorted(indices)
        }
        for index, part in self._parts.items():
            if index + 1 < layout.stages:
                part.register_forward_hook(partial(_check, index, plan.passed(index + 1)))
        used = layers.part(0, len(layers)).state_dict()
        # Weights that no layer uses belong to the state of the module nevertheless.
        rest = module.state_dict() if dist.get_rank() == 0 else {}
        self._unused = {name: value for name, value in rest.items() if name not in used}
        release(module, nn.ModuleList(self._parts.values()))
        self._group: Any = None
        for replica in range(layout.replicas):
            group = dist.new_group([replica * layout.stages + place for place in range(layout.stages)])
            self._group = group if replica == self._replica else self._group
        self._copies = self._groups_of_copies()
        self._share(lambda part: chain(part.parameters(), part.buffers()))
        self._ways = [
            Way(
                layout,
                number,
                index=index,
                part=self._parts[index],
                taken=plan.passed(index),
                made=plan.passed(index + 1),
                loss=loss,
                group=self._group,
                device=self._device,
            )
            for number, index in enumerate(indices)
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

    def _share(self, values: Callable[[nn.Module], Iterable[torch.Tensor]]) -> None:
        """Give all copies of a stage these values of the first one, which `state_dict` returns; collective."""
        for index, part in self._parts.items():
            for each in values(part) if self._copies[index] else ():
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
            If the rank does not pass its number of rows, or a stage returns another type than was measured, as in
            `torch.autocast` if the pipeline was not made there.
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

        Notes
        -----
        All copies of a stage get the running means of the first one, so the loss is that of `state_dict`.
        """
        self._share(nn.Module.buffers)
        inputs, targets = self._moved(rows, labels, 1)
        part, each, total = self._parts[self._place], self.plan.layout.rows, 0.0
        with mode(part, training=False), torch.no_grad():
            for start in range(0, self.plan.layout.size // self.plan.layout.replicas, each):
                passed = inputs[start : start + each] if self._place == 0 else self._received()
                passed = part(passed)
                if self._place == self.plan.layout.stages - 1:
                    total += float(self._loss(passed, targets[start : start + each]))
                else:
                    dist.send(passed, group=self._group, group_dst=self._place + 1)
        return self._mean(total)

    def _received(self) -> torch.Tensor:
        passed = torch.empty_like(self.plan.passed(self._place), device=self._device, requires_grad=False)
        dist.recv(passed, group=self._group, group_src=self._place - 1)
        return passed

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state of the whole module on rank 0, and nothing on other ranks; collective."""
        stages, state = self.plan.layout.stages, {}
        own = self._parts.get(self._place, nn.Module()).state_dict()
        mine = {name: value.detach().cpu() for name, value in own.items()}
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

        Raises
        ------
        InvalidRequest
            If `state` lacks a weight of this rank.
        """
        for part in self._parts.values():
            own = part.state_dict()
            names = [name for name in own if name in self._names]
            if missing := [name for name in names if name not in state]:
                raise InvalidRequest(
                    f"the state has no {', '.join(missing)}. Pass the state of the whole module, or the state of the "
                    f"stages of rank {dist.get_rank()}."
                )
            part.load_state_dict(own | {name: state[name] for name in names})

    def _moved(self, rows: Any, labels: Any, ways: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Send the rows of this replica to the first stages, and the labels to the last ones."""
        rows, labels = tensor(rows), tensor(labels)
        size, each = self.plan.layout.size, self.plan.layout.size // dist.get_world_size()
        if len(rows) != each or len(labels) != each:
            raise InvalidRequest(
                f"rank {dist.get_rank()} passes {len(rows)} rows and {len(labels)} labels, and its part of a batch "
                f"of {size} rows has {each}. Use batches(comm, ..., size={size})."
            )
        if rows.shape[1:] != self.plan.shape[1:]:
            raise InvalidRequest(
                f"rows of shape {tuple(rows.shape[1:])} are not valid. Pass rows of shape {self.plan.shape[1:]}, "
                "the shape of the rows of `sample`."
            )
        rows = rows.to(self.plan.dtype)
        places = self.plan.layout.place
        firsts, lasts = ([places(stage, way) for way in range(ways)] for stage in (0, self.plan.layout.stages - 1))
        delivered = deliver(rows, firsts, self._group), deliver(labels, lasts, self._group)
        return delivered[0].to(self._device), delivered[1].to(self._device)

    def _add_gradients(self) -> None:
        """Make the gradients those of the mean loss of the batch: the sum over microbatches of all copies."""
        for index, part in self._parts.items():
            # The copies have the same weights, so stages that two ranks share are reduced in the same order.
            for gradients in _buckets(part):
                if self._copies[index]:
                    _sum(gradients, self._copies[index])
                for gradient in gradients:
                    gradient.div_(self.plan.layout.microbatches)

    def _mean(self, total: float) -> float:
        losses = torch.tensor([total], dtype=torch.float64)
        dist.all_reduce(losses)
        return float(losses.item()) / self.plan.layout.microbatches


def _check(stage: int, expected: torch.Tensor, _part: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
    """Raise InvalidRequest if the next stage expects another tensor than a stage returned: MPI would send the bytes."""
    if (output.dtype, output.shape) != (expected.dtype, expected.shape):
        raise InvalidRequest(
            f"stage {stage} returned {output.dtype} of shape {tuple(output.shape)}, and stage {stage + 1} expects "
            f"{expected.dtype} of shape {tuple(expected.shape)}, which was measured. Make and use the pipeline in the "
            "same torch.autocast() context, and pass rows like those of `sample`."
        )


def _buckets(part: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Yield the gradients of a stage in groups of one type and a limited size, and each sparse one alone."""
    bucket: list[torch.Tensor] = []
    for gradient in (weight.grad for weight in part.parameters() if weight.grad is not None):
        if bucket and (
            any(each.is_sparse for each in (bucket[0], gradient))
            or bucket[0].dtype != gradient.dtype
            or sum(each.nbytes for each in bucket) > _BUCKET
        ):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


def _sum(gradients: list[torch.Tensor], group: Any) -> None:
    """Add the gradients of all ranks of a group, in one message; these may be in any order in memory."""
    if len(gradients) == 1:
        dist.all_reduce(gradients[0], group=group)
        return
    vector = torch.cat([each.reshape(-1) for each in gradients])
    dist.all_reduce(vector, group=group)
    for each, row in zip(gradients, vector.split([each.numel() for each in gradients]), strict=True):
        each.copy_(row.view(each.shape))
