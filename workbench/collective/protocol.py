"""What a client, the head and the ranks send each other for a function on all ranks and for a broadcast.

An operation and a field of a message have their names here alone. A message travels whole: the sender makes the
dictionary, a handler takes it as ``**asked: Unpack[Kind]``, and the head copies what it passes on by `part`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

if TYPE_CHECKING:
    from dask.typing import Key

M = TypeVar("M")

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

# Of the head, for clients and for the rank that has taken an upload.
BROADCAST = "workbench_broadcast"
BROADCAST_BEGIN = "workbench_broadcast_begin"
BROADCAST_UPLOADED = "workbench_broadcast_uploaded"
# Of the head and of a rank, for clients.
BROADCAST_UPLOAD = "workbench_broadcast_upload"
# Of a rank, for the head.
BROADCAST_OFFER = "workbench_broadcast_offer"
BROADCAST_TAKE = "workbench_broadcast_take"
BROADCAST_GO = "workbench_broadcast_go"
BROADCAST_CANCEL = "workbench_broadcast_cancel"


def part(kind: type[M], message: Mapping[str, Any]) -> M:
    """Return the fields of a message that a message of another kind has, too."""
    return cast("M", {name: message[name] for name in kind.__required_keys__})  # type: ignore[attr-defined]


# -- a function on all ranks -----------------------------------------------------------------------------------


class Id(TypedDict):
    """Which call it is."""

    call: str
    """Identity of the call."""


class Work(TypedDict):
    """What a rank needs to get ready; the head passes it on as it came."""

    name: str
    """What messages call it."""
    contents: bytes
    """Parcel of function, arguments, keyword arguments and what makes blocks of the value; or of that parcel's slot."""


class Wanted(TypedDict):
    """What a rank is to send back; the head passes it on as it came."""

    root: bool
    """Whether only the first rank sends its value."""
    limit: int | None
    """Bytes that may travel to the client; None for any number."""


class Call(Id, Work, Wanted):
    """`CALL`: what a client asks for."""

    client: str
    """Identity of the client."""
    origin: int | None
    """Number of the notebook's cell that has asked for it."""
    keys: list[list[Key]]
    """For each rank what stands for the slots among the arguments; for all ranks the same if there is one item."""
    addresses: list[str] | None
    """Ranks that hold the blocks, in the order of these; None: there are no blocks."""
    ranks: list[int] | None
    """Ranks that take part; None: those of the `addresses`, or all of the world."""
    world: int | None
    """Index of the world; None: that of the `addresses`."""
    timeout: float | None
    """Seconds for waiting and running; None for as long as it takes."""


class Reserve(Id, Work):
    """`RESERVE`: get ready for a call."""

    serial: int
    """Number of the communicator."""
    ranks: list[int]
    """Ranks of the world that the communicator has."""
    keys: Sequence[Key]
    """Of what the slots among the arguments stand for."""


class Go(Id, Wanted):
    """`GO`: join in a call that all ranks are ready for."""


class Settle(Id):
    """`SETTLE`: make the communicator of the last call fit for the next one."""

    serial: int
    """Number of the communicator."""


class End(Id):
    """`END`: call it off, wherever it is."""

    serial: int | None
    """Number of the communicator, which is not used again; None if the call has used none."""
    reason: str
    """Why, in words."""


class Error(TypedDict):
    """An error of a rank on its way to the client; see `workbench.collective.serialize.pack_error`."""

    words: str
    stack: str
    parcel: bytes | None


class Ready(TypedDict, total=False):
    """Answer to `RESERVE`; empty if the rank is ready."""

    missing: list[Key]
    """Keys that the rank does not hold."""
    error: Error
    """Why it cannot be done."""
    ended: str
    """Why it was called off."""


class Outcome(TypedDict, total=False):
    """Answer to `GO`: a value (or its size alone), blocks, an error, or that it was ended."""

    nbytes: int
    """Of the value."""
    value: Any
    """The value as a parcel, if that is not too large."""
    blocks: bytes
    """Parcel of what there is to know of the blocks that were made."""
    keys: list[Key]
    """Of these blocks."""
    error: Error
    ended: str
    pending: bool
    """Whether requests are not complete, or may be."""
    messages: int
    """Balance of the messages; of all ranks the sum is a multiple of `KEYS` + 1 where each message was received."""
    kept: list[tuple[Key, int]]
    """Blocks that the rank keeps, with their bytes: the answer to `KEEP`, in the place where an outcome is awaited."""


class Answer(TypedDict, total=False):
    """Answer to `CALL`: values, blocks, or the error of a rank."""

    values: list[bytes]
    """In the order of the ranks."""
    blocks: list[bytes]
    """In the order of the ranks, as of `Outcome`."""
    keys: list[Key]
    """Of the blocks, for the head alone."""
    error: Error
    rank: int
    """The rank that failed."""
    others: str
    """What other ranks did, in words."""
    world: int
    addresses: list[str]
    """Of the ranks, in their order."""


# -- a broadcast -----------------------------------------------------------------------------------------------


class Offer(Id):
    """`BROADCAST_OFFER`: get ready to send an object."""

    key: Key
    """Of the object."""
    timeout: float
    """Seconds."""


class Take(Offer):
    """`BROADCAST_TAKE`: get ready to receive it."""

    sizes: list[int]
    """Bytes of each frame."""
