"""What a notebook, the head and the ranks send each other for a cell, beside the cell itself and its output.

As in `workbench.collective.protocol`: an operation and a field have their names here alone, and messages travel whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from dask.typing import Key

# -- operations ------------------------------------------------------------------------------------------------

# Of the head, for notebooks.
BEGIN = "workbench_cells_begin"
WAIT = "workbench_cells_wait"
INTERRUPT = "workbench_cells_interrupt"
REACH = "workbench_cells_reach"
# Of the head, for ranks.
ENDED = "workbench_cells_ended"
# Of the head for notebooks, and of a rank for the head.
COMPLETE = "workbench_cells_complete"
# Of a rank, for the head.
WARM = "workbench_cells_warm"
ENGINE = "workbench_cells_engine"
PREPARE = "workbench_cells_prepare"
END = "workbench_cells_end"

# -- messages --------------------------------------------------------------------------------------------------


class Id(TypedDict):
    """Which cell it is."""

    cell: str
    """Identity of the cell."""


class Allowed(TypedDict):
    """What a cell may do on a rank; the head passes it on as it came."""

    limit: int
    """Characters of output that may go to the notebook."""


class How(TypedDict, total=False):
    """How an object comes to a rank: as a block of its own, as the value of a key, or as a parcel."""

    blocks: dict[str, Key]
    """Key of each block by the address of its rank; for the head alone."""
    key: Key
    holders: list[str]
    """Addresses of the ranks that have the value of `key`; of the head."""
    parcel: bytes


class Begin(Id, Allowed):
    """`BEGIN`: let a cell begin when it is its turn."""

    client: str
    """Identity of the client."""
    origin: int | None
    """Number of the cell in its notebook."""
    world: int
    """Index of the world."""
    ranks: list[int] | None
    """Ranks that run it; None: all."""
    names: dict[str, How]
    """By name: how the object comes to the ranks."""
    timeout: float
    """Seconds for its turn to come."""


class Reach(TypedDict):
    """How a notebook reaches the engines of a world."""

    connection: dict[str, Any]
    """Of ipyparallel, to the controller."""
    idents: dict[int, str]
    """Identities of the engines by rank."""


class Granted(Reach):
    """Answer to `BEGIN`."""

    ranks: Sequence[int]
    """Ranks that run the cell."""
    size: int
    """Of the world."""


class Prepare(Id, Allowed):
    """`PREPARE`: get ready for a cell."""

    generation: int
    """Grows whenever a cell broke off: communicators of before it are of no use."""
    serial: int
    """Number of the communicator of these ranks."""
    ranks: list[int]
    """Ranks that run the cell."""
    names: dict[str, How]
    """By name: how the object comes to this rank."""


class End(Id):
    """`END`: end a cell on a rank."""

    reason: str
    """In words."""
    interrupt: bool
    """End it wherever it is, by SIGINT; else only if it is, or comes, in MPI."""


class Ended(Id):
    """`ENDED`: a rank is done with a cell, or about to fail."""

    rank: int
    status: str
    """As of `workbench.cells.run_cell.CellOutcome`; also ``failing``, ahead of the traceback, and ``called off``."""
    summary: str
    """Why it is not ok, in one line."""
