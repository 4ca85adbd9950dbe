"""The plan of a pipeline: where layers are cut into stages, where these run, and what each of their ranks holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from workbench.errors import InvalidRequest
from workbench.text import count, table_lines

if TYPE_CHECKING:
    from workbench.torch.pipelines.costs import Cost


def in_flight(schedule: str, stage: int, stages: int, microbatches: int) -> int:
    """Return how many microbatches a stage keeps at most until their backward passes.

    Parameters
    ----------
    schedule
        ``"gpipe"`` keeps all; the others a microbatch for each stage from this one on.
    stage, stages
        Number of the stage, and the number of stages.
    microbatches
        Those that one replica of the module gets in a step.
    """
    return microbatches if schedule == "gpipe" else min(microbatches, stages - stage)


def cut(
    costs: Sequence[tuple[float, int, int]],
    stages: int,
    kept: Callable[[int], int],
    microbatches: int,
    forbidden: Collection[int] = (),
) -> list[int]:
    """Return the first layer of each stage.

    Parameters
    ----------
    costs
        Of each layer: the time of a microbatch, the bytes of its activations, and the bytes of the weights.
    stages
        Number of stages.
    kept
        Function of the number of a stage: the microbatches whose activations the stage holds.
    microbatches
        Those whose activations one process would hold.
    forbidden
        Layers that must be on the stage of the layer before.

    Raises
    ------
    InvalidRequest
        If there are fewer parts than stages.

    Notes
    -----
    The cost of a stage is the larger one of two shares: of the time of all layers, and of the memory that one process
    would need. Dynamic programming finds the cuts whose largest cost is minimal, in O(stages * layers**2) steps
    (the linear partition problem: S. Skiena, *The Algorithm Design Manual*, 2020, section 10.7).
    """
    number = len(costs)
    if (most := number - len(set(forbidden))) < stages:
        raise InvalidRequest(
            f"stages={stages} is not valid: the module can be cut into {count(most, 'stage')} at most. Choose fewer "
            "stages, and more replicas."
        )
    time, activations, weights = ([0, *accumulate(each)] for each in zip(*costs, strict=True))
    memory = microbatches * activations[-1] + weights[-1]

    def cost(stage: int, first: int, end: int) -> float:
        bytes_held = kept(stage) * (activations[end] - activations[first]) + weights[end] - weights[first]
        share: float = max((time[end] - time[first]) / (time[-1] or 1), bytes_held / (memory or 1))
        return share

    infinite = float("inf")
    # The lowest cost of the layers up to each end, and the first layer of the last stage there.
    best = [0.0, *[infinite] * number]
    chosen: list[list[int]] = []
    for stage in range(stages):
        lowest, starts = [infinite] * (number + 1), [0] * (number + 1)
        for end in range(stage + 1, number + 1):
            for first in range(end - 1, stage - 1, -1):
                if first in forbidden or best[first] == infinite:
                    continue
                value = max(best[first], own := cost(stage, first, end))
                if value < lowest[end]:
                    lowest[end], starts[end] = value, first
                if own > lowest[end]:
                    break  # longer stages cost more
        best = lowest
        chosen.append(starts)
    end, firsts = number, []
    for starts in reversed(chosen):
        end = starts[end]
        firsts.append(end)
    return firsts[::-1]


SCHEDULES = ("gpipe", "1f1b", "bidirectional")
"""Valid orders of forward and backward passes."""
# A stage has nearly no work below this part of an equal share of the time.
_IDLE = 0.1


@dataclass(frozen=True)
class Layout:
    """How the ranks share stages, replicas and the rows of a batch."""

    stages: int
    """Parts of the module."""
    replicas: int
    """Pipelines that share a batch."""
    microbatches: int
    """Parts of a batch, in all replicas together."""
    size: int
    """Rows of a batch, on all ranks together."""
    schedule: str
    """One of `SCHEDULES`."""

    @classmethod
    def of(
        cls, ranks: int, *, size: int, stages: int, replicas: int | None, microbatches: int, schedule: str
    ) -> Layout:
        """Return the layout of a number of ranks.

        Raises
        ------
        InvalidRequest
            If ranks, rows or microbatches cannot be shared evenly, or the schedule does not exist.
        """
        if schedule not in SCHEDULES:
            raise InvalidRequest(option="schedule", given=schedule, allowed=SCHEDULES)
        if stages < 1 or ranks % stages or replicas not in {None, ranks // stages}:
            given = f"stages={stages}" + ("" if replicas is None else f", replicas={replicas}")
            raise InvalidRequest(
                f"{given} is not valid for {count(ranks, 'rank')}: stages times replicas must be the number of ranks."
            )
        layout = cls(stages, ranks // stages, microbatches, size, schedule)
        copies = layout.replicas * layout.directions
        if stages < 2 and layout.directions > 1:
            raise InvalidRequest("schedule='bidirectional' needs at least 2 stages. Choose 'gpipe' or '1f1b'.")
        if microbatches < 1 or microbatches % copies or microbatches // copies < layout.fewest:
            least = copies * layout.fewest
            allowed = f"a multiple of the number of copies of the module ({copies}), at least {least}"
            raise InvalidRequest(option="microbatches", given=microbatches, allowed=allowed)
        if size < 1 or size % microbatches or size % ranks:
            both = f"a multiple of the number of ranks ({ranks}) and of the number of microbatches ({microbatches})"
            raise InvalidRequest(option="size", given=size, allowed=both)
        return layout

    @property
    def directions(self) -> int:
        """Copies of the module in a pipeline: 2 if these run in opposite directions."""
        return 2 if self.schedule == "bidirectional" else 1

    @property
    def fewest(self) -> int:
        """Smallest number of microbatches of a copy: with fewer, stages would always wait."""
        return 1 if self.schedule == "gpipe" else self.stages

    @property
    def each(self) -> int:
        """Microbatches of a copy of the module in a step."""
        return self.microbatches // (self.replicas * self.directions)

    @property
    def rows(self) -> int:
        """Rows of a microbatch."""
        return self.size // self.microbatches

    def kept(self, stage: int) -> int:
        """Return how many microbatches a stage keeps at most until their backward passes."""
        return in_flight(self.schedule, stage, self.stages, self.each)

    def place(self, stage: int, direction: int) -> int:
        """Return which rank of a pipeline has a stage, in a direction."""
        return self.stages - 1 - stage if direction else stage


@dataclass(frozen=True)
class Plan:
    """A layout, and the layers of each stage."""

    layout: Layout
    shape: tuple[int, ...]
    """Shape of the rows of a microbatch."""
    dtype: torch.dtype
    """Type of the rows."""
    costs: tuple[Cost, ...]
    """Costs of the layers."""
    firsts: tuple[int, ...]
    """First layer of each stage."""

    @classmethod
    def of(
        cls, layout: Layout, rows: torch.Tensor, costs: Sequence[Cost], together: Sequence[tuple[str, int, int]] = ()
    ) -> Plan:
        """Return the plan whose largest share of time or memory is as small as possible.

        Parameters
        ----------
        layout
            The layout.
        rows
            A microbatch, of which shape and type are kept.
        costs
            Of the layers.
        together
            Weights that several layers use: the name, and the first and the last of these layers.

        Raises
        ------
        InvalidRequest
            If the module cannot be cut into so many stages.
        """
        fixed = {number for _, first, last in together for number in range(first + 1, last + 1)}
        fixed |= {number + 1 for number, cost in enumerate(costs[:-1]) if not cost.passes_gradients}
        # Each stage begins with weights to train, and the first one contains some: an optimizer needs weights.
        trained = [number for number, cost in enumerate(costs) if cost.trained]
        fixed |= set(range(1, len(costs))) - set(trained[1:])
        try:
            firsts = cut(
                [(cost.seconds, cost.saved, cost.held) for cost in costs],
                layout.stages,
                layout.kept,
                layout.each * layout.directions,
                fixed,
            )
        except InvalidRequest as error:
            shared = "; ".join(f"{name} is a weight of {costs[a].name} and {costs[b].name}" for name, a, b in together)
            raise InvalidRequest(f"{error} ({shared})" if shared else str(error), option="stages") from None
        return cls(layout, tuple(rows.shape), rows.dtype, tuple(costs), tuple(firsts))

    def layers(self, stage: int) -> tuple[int, int]:
        """Return the first layer of a stage, and the first one of the next stage."""
        ends = (*self.firsts[1:], len(self.costs))
        return self.firsts[stage], ends[stage]

    def clones(self, stage: int) -> bool:
        """Return whether a stage needs a copy of its input, which torch keeps as a leaf for the gradient."""
        return self.costs[self.firsts[stage]].in_place

    def passed(self, stage: int) -> torch.Tensor:
        """Return the input of a stage for a microbatch, or the output of the last one, on the meta device."""
        if stage == 0:
            return torch.empty(self.shape, dtype=self.dtype, device="meta")
        last = self.costs[self.layers(stage - 1)[1] - 1]
        # Gradients pass between stages, and not to the rows.
        return torch.empty(last.shape, dtype=last.dtype, device="meta", requires_grad=True)

    def uneven(self) -> str:
        """Return a warning if a stage has nearly no work beside one with a layer that is not cut, otherwise nothing."""
        stages = [self.costs[slice(*self.layers(stage))] for stage in range(self.layout.stages)]
        times = [sum(cost.seconds for cost in costs) for costs in stages]
        total = sum(times) or 1.0
        least, most = (times.index(each(times)) for each in (min, max))
        if times[least] / total > _IDLE / len(stages):
            return ""
        layer = max(stages[most], key=lambda cost: cost.seconds).name
        return (
            f"stage {least} has {times[least] / total:.0%} of the time, and stage {most}, with the layer {layer}, has "
            f"{times[most] / total:.0%}. Use the parts of {layer} as layers of an nn.Sequential, or fewer stages."
        )

    def table(self) -> str:
        """Return the stages as a table."""
        lines = [["rank", "stage", "layers", "weights", "MB of weights and gradients", "MB of activations", "time"]]
        total = sum(cost.seconds for cost in self.costs) or 1.0
        for rank in range(self.layout.stages):
            stages = list(dict.fromkeys(self.layout.place(rank, way) for way in range(self.layout.directions)))
            costs_of = [self.costs[slice(*self.layers(stage))] for stage in stages]
            lines.append(
                [
                    ", ".join(str(rank + self.layout.stages * replica) for replica in range(self.layout.replicas)),
                    " and ".join(map(str, stages)),
                    " and ".join(_span(costs) for costs in costs_of),
                    f"{sum(cost.weights for costs in costs_of for cost in costs):,}",
                    f"{sum(cost.held for costs in costs_of for cost in costs) / 1e6:.1f}",
                    f"{self._activations(stages) / 1e6:.1f}",
                    f"{sum(cost.seconds for costs in costs_of for cost in costs) / total / len(stages):.0%}",
                ]
            )
        layout = self.layout
        head = (
            f"pipeline: {count(layout.stages, 'stage')} x {count(layout.replicas, 'replica')}, {layout.schedule}, "
            f"batches of {count(layout.size, 'row')} in microbatches of {count(layout.rows, 'row')}"
        )
        return "\n".join([head, *table_lines(lines, str.rjust)])

    def _activations(self, stages: Sequence[int]) -> int:
        """Return the bytes that a rank with these stages holds at most: what layers save, and received messages."""
        saved = [
            self.layout.kept(stage) * sum(cost.saved for cost in self.costs[slice(*self.layers(stage))])
            for stage in stages
        ]
        # Torch allocates memory for each microbatch that a stage receives, and for its gradient.
        received = [each for stage in stages for each in (stage, stage + 1) if 0 < each < self.layout.stages]
        messages = sum(int(self.passed(each).nbytes) for each in received)
        return max(saved) + self.layout.each * messages


def _span(costs: Sequence[Cost]) -> str:
    first, last = costs[0].name.split("…")[0], costs[-1].name.split("…")[-1]
    return first if first == last else f"{first}…{last}"
