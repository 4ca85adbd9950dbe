"""Messages between a notebook, the head and the ranks for a cell, except for the cell itself and its output.

As in `workbench.collective.protocol`, this module is the only place with the names of operations and fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from workbench.collective.protocol import SLACK_S

if TYPE_CHECKING:
    from dask.typing import Key

# -- operations ------------------------------------------------------------------------------------------------

# Of the head, for notebooks.
BEGIN = "workbench_cells_begin"
DELAY = "workbench_cells_delay"
WAIT = "workbench_cells_wait"
INTERRUPT = "workbench_cells_interrupt"
REACH = "workbench_cells_reach"
# Of the head, for ranks.
ENDED = "workbench_cells_ended"
ENGINE_ENDED = "workbench_cells_engine_ended"
NAMED = "workbench_cells_named"
# Of the head for notebooks, and of a rank for the head.
COMPLETE = "workbench_cells_complete"
# Of a rank, for the head.
FORGET = "workbench_cells_forget"
UNUSED = "workbench_cells_unused"
WARM = "workbench_cells_warm"
ENGINE = "workbench_cells_engine"
PREPARE = "workbench_cells_prepare"
END = "workbench_cells_end"

# The status of a rank in `Ended` whose cell was canceled before its start.
CANCELLED = "cancelled"

# -- deadlines, in seconds ---------------------------------------------------------------------------------------

# The first cell starts the engines, which takes a second on an idle machine and minutes on a loaded one. A step has a
# shorter deadline than the request that contains the step, so that the error names the step. As in
# `workbench.collective.protocol`, a value is computed from those that the value must exceed.
REGISTER_S = 120.0
"""For an engine to start and to register with its controller."""
JOIN_S = 120.0
"""For all ranks of a cell to begin."""
CONTROLLER_S = 120.0
"""For the controller to print its connections."""
ANSWER_S = REGISTER_S + 30.0
"""For a rank to answer to a step of the preparation of a cell."""
ENGINES_S = max(CONTROLLER_S, ANSWER_S) + ANSWER_S + 30.0
"""For the head to start the engines: two requests to the ranks, during the first also the controller."""
REACH_S = 60.0
"""For the controller and the engines to answer to a notebook the first time."""
RANK_CELL_END_S = 10.0
"""For which a rank interrupts a cell that does not end."""
CELL_END_S = RANK_CELL_END_S + SLACK_S
"""For the ranks to end an interrupted cell."""
CLIENT_CELL_END_S = CELL_END_S + SLACK_S
"""For the head to report the end of an interrupted cell to the notebook."""

# -- messages --------------------------------------------------------------------------------------------------


class Id(TypedDict):
    """Identity of a cell."""

    cell: str
    """Identity of the cell."""


class Allowed(TypedDict):
    """Limits and checks of a cell on a rank; the head forwards them unchanged."""

    limit: int
    """Characters of output that may be sent to the notebook."""
    compares: bool
    """Whether the ranks compare the buffers of each collective operation."""


class Transfer(TypedDict, total=False):
    """How an object reaches a rank: as the block on the rank, as the value of a key, or as a parcel."""

    blocks: dict[str, Key]
    """Key of each block, by the address of its rank; only for the head."""
    key: Key
    holders: list[str]
    """Addresses of the ranks that have the value of `key`; the head adds this field."""
    parcel: bytes


class Begin(Id):
    """`BEGIN`: prepare a cell when its turn comes."""

    allowed: Allowed
    client: str
    """Identity of the client."""
    notebook: str
    """Identity of the notebook, the name of its namespace."""
    origin: int | None
    """Number of the cell in its notebook."""
    ranks: list[int] | None
    """Ranks that run the cell; None: all."""
    names: dict[str, Transfer]
    """How each object reaches the ranks, by name."""


class Reach(TypedDict):
    """How a notebook reaches the engines."""

    connection: dict[str, Any]
    """Connection of ipyparallel to the controller."""
    idents: dict[int, str]
    """Identities of the engines by rank."""


class Granted(Reach):
    """Answer to `BEGIN`."""

    ranks: Sequence[int]
    """Ranks that run the cell."""
    size: int
    """Number of ranks of the world."""


class Prepare(Id):
    """`PREPARE`: prepare a cell on a rank."""

    allowed: Allowed
    generation: int
    """Increases after each cell that was ended: earlier communicators must not be used again."""
    serial: int
    """Number of the communicator of these ranks."""
    ranks: list[int]
    """Ranks that run the cell."""
    names: dict[str, Transfer]
    """How each object reaches this rank, by name."""


class End(Id):
    """`END`: end a cell on a rank."""

    reason: str
    """Reason, for people."""
    interrupt: bool
    """Whether SIGINT ends the code of the user; else only MPI operations of the cell fail."""


class Ended(Id):
    """`ENDED`: a rank has ended a cell, or is about to fail."""

    rank: int
    status: str
    """As of `workbench.cells.run_cell.CellOutcome`; also ``failing``, before the traceback, and ``cancelled``."""
    summary: str
    """Reason of a status that is not ``ok``, in one line."""
