"""Sets of cores that are fewer than the ranks that may use no other core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SharedCores:
    """Cores of a node, and the ranks that may use no other core, of which there are more.

    Attributes
    ----------
    node : int
        An index of `Layout.nodes`.
    cores : int
        Number of the cores.
    ranks : tuple of int
        Indices of `Layout.ranks`.
    """

    node: int
    cores: int
    ranks: tuple[int, ...]


def shared_cores(nodes: Sequence[int], cpus: Sequence[Iterable[int]]) -> tuple[SharedCores, ...]:
    """Return the shared cores among the cores of each rank, and among those of all ranks of a node together.

    Parameters
    ----------
    nodes
        The node of each rank.
    cpus
        Numbers of the cores that each rank may use.

    Examples
    --------
    >>> shared_cores([0, 0, 0], [[0], [0], [0, 1, 2, 3]])
    (SharedCores(node=0, cores=1, ranks=(0, 1)),)
    """
    masks: dict[int, dict[frozenset[int], list[int]]] = {}
    for rank, (node, numbers) in enumerate(zip(nodes, cpus, strict=True)):
        masks.setdefault(node, {}).setdefault(frozenset(numbers), []).append(rank)
    shared = []
    for node, ranks_of in masks.items():
        for cores in dict.fromkeys([frozenset().union(*ranks_of), *ranks_of]):
            ranks = sorted(rank for mask, users in ranks_of.items() if mask <= cores for rank in users)
            if len(ranks) > len(cores):
                shared.append(SharedCores(node, len(cores), tuple(ranks)))
    return tuple(shared)
