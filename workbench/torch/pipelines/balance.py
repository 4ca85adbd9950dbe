"""Where a chain of layers is cut into stages, so that the largest share of time or memory is as small as possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from workbench.errors import InvalidRequest
from workbench.text import count


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
