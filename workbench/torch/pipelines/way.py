"""A copy of the module on the ranks of a pipeline, which the microbatches pass in one direction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from workbench.torch.pipelines.plan import Layout

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function of outputs and labels that returns the mean over the rows."""


class Way:
    """The stage of a copy of the module on this rank.

    Parameters
    ----------
    layout
        Of the pipeline.
    number
        Number of the direction: 0 from the first rank to the last one, 1 back.
    index, part
        Number of the stage, and its module.
    taken, made
        Input and output of the stage for a microbatch, on the meta device.
    loss
        Of the last stage.
    group
        Process group of the ranks of the pipeline.
    device
        Where the part is.
    """

    def __init__(
        self,
        layout: Layout,
        number: int,
        *,
        index: int,
        part: nn.Module,
        taken: torch.Tensor,
        made: torch.Tensor,
        loss: Loss,
        group: Any,
        device: torch.device,
    ) -> None:
        self._stage = PipelineStage(part, index, layout.stages, device, taken, made, group=group)
        self._stage.stage_index_to_group_rank = {stage: layout.place(stage, number) for stage in range(layout.stages)}
        kind = ScheduleGPipe if layout.schedule == "gpipe" else Schedule1F1B
        # The pipeline divides the gradients, after it has added those of all copies.
        self._schedule = kind(self._stage, layout.each, loss_fn=loss, scale_grads=False)
        # Without this argument, which older releases do not have, the last stage keeps the outputs of all microbatches.
        known = inspect.signature(self._schedule.step).parameters
        self._options: dict[str, Any] = {"return_outputs": False} if "return_outputs" in known else {}

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Pass the microbatches of this copy; return the sum of their losses, if the last stage is here."""
        losses: list[torch.Tensor] = []
        given = (inputs,) if self._stage.is_first else ()
        wanted = {"target": targets, "losses": losses} if self._stage.is_last else {}
        raised: BaseException | None = None
        try:
            self._schedule.step(*given, **wanted, **self._options)
        except RuntimeError as error:
            if error.__cause__ is None or not _is_raised_by_torch(error):
                raise
            raised = error.__cause__
        # Raised there, it would have the error of torch as its context, and that error has it as its cause.
        if raised is not None:
            raise raised
        return float(sum(each.item() for each in losses))


def _is_raised_by_torch(error: RuntimeError) -> bool:
    """Return whether torch has put its error in the place of that of the module."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    name = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return str(name).startswith("torch.distributed.pipelining")
