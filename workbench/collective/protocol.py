"""Messages between a client, the head and the ranks for a call and for a broadcast.

This module is the only place with the names of operations and fields. The sender makes the dictionary of a message, a
handler has the parameter ``**request: Unpack[Kind]``. What the head forwards unchanged is one field, a message of a
separate kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from dask.typing import Key

# -- operations ------------------------------------------------------------------------------------------------

# Of the head, for clients.
CALL = "workbench_spmd"
RUNNING = "workbench_spmd_running"
CANCEL = "workbench_spmd_cancel"
# Of the head for clients, and of a rank for the head.
WHERE = "workbench_where"
# Of a rank, for the head.
RESERVE = "workbench_spmd_reserve"
GO = "workbench_spmd_go"
SETTLE = "workbench_spmd_settle"
KEEP = "workbench_spmd_keep"
END = "workbench_spmd_end"
# Of the head, for ranks, and of a client, for the head.
EVENT = "workbench_spmd_event"
# Of the head, for clients, and of a rank, for the head.
ANSWER = "workbench_spmd_answer"
LARGE = 1 << 20
"""Bytes of a plain argument above which a broadcast sends the object; most bytes of an event, and of an answer."""

# Of the head, for clients and for the rank that has taken an upload.
BROADCAST_BEGIN = "workbench_broadcast_begin"
BROADCAST_UPLOADED = "workbench_broadcast_uploaded"
# Of the head and of a rank, for clients.
BROADCAST_UPLOAD = "workbench_broadcast_upload"
UPLOAD_LOST = "rank 0 was lost before the upload of a broadcast was complete. No rank has the object."
# -- deadlines, in seconds -------------------------------------------------------------------------------------

# A notebook asks the head to end an operation, and the head asks the ranks. Each of them waits longer than the process
# that it asks, so that an error names the ranks that do not answer. So each value is computed from those that the value
# must exceed.
SLACK_S = 1.0
"""For the messages between two processes on a busy machine."""
REMEMBER_S = 60.0
"""For which the head remembers a cancellation, since the request that is canceled may arrive later."""
RANK_REMEMBER_S = 10 * REMEMBER_S
"""For which a rank remembers the end of a call or a cell: the head may send the request to prepare it later."""

REVOKE_S = 0.3
"""Until a rank revokes the communicator in C code that waits in MPI, if MPI supports that."""
OPERATION_S = 1.0
"""For an operation of a `Communicator` to end by itself."""
CALL_END_S = OPERATION_S + REVOKE_S + 0.1
"""For the ranks to return from a call that is ended."""
WHERE_STUCK_S = 0.3
"""For a rank that has not returned to report its position."""
RETURN_S = 5.0
"""For ranks whose code ends by itself to return afterwards, also on a busy machine."""
CLIENT_CALL_END_S = CALL_END_S + WHERE_STUCK_S + RETURN_S + SLACK_S
"""For the head to report the end of an interrupted call, or of a late broadcast, to the notebook."""

BROADCAST_S = 300.0
"""For a broadcast without a given time limit."""


# -- an SPMD call ----------------------------------------------------------------------------------------------


class Id(TypedDict):
    """`SETTLE`: make the communicator usable for the next call; `KEEP`: keep blocks. Part of the other messages."""

    call: str
    """Identity of the call."""


class Work(TypedDict):
    """Function and arguments for a rank; the head forwards them unchanged."""

    name: str
    """Name of the function in messages for people."""
    contents: bytes | None
    """Parcel of the function, its arguments and the function that makes blocks; None: the last value is the parcel."""
    compares: bool
    """Whether the ranks compare the buffers of each collective operation."""
    counted: bool
    """Whether the metrics have the call."""
    listener: str | None
    """Identity of the client that receives the events; None if none does."""


class Wanted(TypedDict):
    """Result that a rank must return; the head forwards the fields unchanged."""

    root: bool
    """Whether only the first rank returns its value."""
    limit: int | None
    """Maximum bytes of the results; None for no limit."""


class Call(Id):
    """`CALL`: the request of a client."""

    work: Work
    wanted: Wanted
    client: str
    """Identity of the client."""
    origin: int | None
    """Number of the cell of the notebook that has made the call."""
    keys: list[list[Key]]
    """Keys of the values for the slots among the arguments, for each rank; one item if all ranks have the same."""
    addresses: list[str] | None
    """Addresses of the ranks with the blocks, in the order of the blocks; None without blocks."""
    writes: bool
    """Whether the function may write into its blocks."""
    ranks: list[int] | None
    """Ranks that take part; None: the ranks of `addresses`, or all ranks."""
    timeout: float | None
    """Seconds for the wait and the run; None for no limit."""
    turn_timeout: float | None
    """Seconds for the run; None: the remaining time of `timeout`."""


class Reserve(Id):
    """`RESERVE`: prepare a call on a rank."""

    work: Work
    serial: int
    """Number of the communicator."""
    ranks: list[int]
    """Ranks in the communicator."""
    keys: Sequence[Key]
    """Keys of the values for the slots among the arguments."""


class Go(Id):
    """`GO`: run a call for which all ranks are prepared."""

    wanted: Wanted


class End(Id):
    """`END`: end a call in any state."""

    serial: int | None
    """Number of the communicator, which is not used again; None if the call has not used a communicator."""
    reason: str
    """Reason, for people."""


class Event(Id):
    """`EVENT`: a value for the function `on_event` of a call. The head forwards the message and the address."""

    listener: str
    """Identity of the client that receives the event."""
    rank: int
    """Number of the rank in the communicator of the call."""
    question: int | None
    """Number of a question, for the answer; None for an event without an answer."""
    contents: bytes
    """Parcel of the value."""


class Answered(Id):
    """`ANSWER`: the answer to a question. The head forwards the message to the rank."""

    address: str
    """Address of the rank."""
    question: int
    """Number of the question."""
    contents: bytes
    """Parcel of the value."""


class Error(TypedDict):
    """An error of a rank for the client; see `workbench.collective.serialize.pack_error`."""

    words: str
    stack: str
    parcel: bytes | None
    process_failed: bool
    """Whether MPI reported to the rank that another process has ended."""


class Ready(TypedDict, total=False):
    """Answer to `RESERVE`; empty if the rank is ready."""

    missing: list[Key]
    """Keys that the rank does not hold."""
    error: Error
    """Reason why the rank cannot run the call."""
    ended: str
    """Reason why the call was ended."""


class Outcome(TypedDict, total=False):
    """Answer to `GO`: a value (or only its size), blocks, an error, or the reason of an end."""

    nbytes: int
    """Bytes of the value."""
    value: Any
    """Parcel of the value, unless its size exceeds the limit."""
    blocks: bytes
    """Parcel of the description of the new blocks."""
    keys: list[Key]
    """Keys of these blocks."""
    error: Error
    ended: str
    pending: bool
    """Whether requests may be incomplete."""
    messages: int
    """Balance of messages and collective operations; the sum over all ranks is a multiple of `KEYS` + 1 if each message
    was received, and all ranks have made as many collective operations."""
    events: int
    """Number of the events that the rank has sent; missing without events."""
    printed: tuple[str, int]
    """Output of the function, and bytes of output above the limit; missing without output."""
    kept: list[tuple[Key, int]]
    """Blocks that the rank keeps, with their bytes: the answer to `KEEP` in the place of an outcome."""


class Answer(TypedDict, total=False):
    """Answer to `CALL`: values, blocks, or the error of a rank."""

    values: list[bytes]
    """In the order of the ranks."""
    blocks: list[bytes]
    """In the order of the ranks; see `Outcome`."""
    keys: list[Key]
    """Keys of the blocks, only for the head."""
    error: Error
    rank: int
    """The rank that failed."""
    others: str
    """Sentence about the other ranks."""
    events: int
    """Number of the events of all ranks that have ended; missing without events."""
    printed: list[tuple[int, str, int]]
    """Output of each rank that has any, as in `Outcome`, with the number of the rank."""
    addresses: list[str]
    """Addresses of the ranks, in their order."""
