"""Profiles of all ranks over some time, like those of mpiP."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future as Promise
from typing import TYPE_CHECKING, Any, Self

from workbench import config
from workbench.errors import CollectiveTimeout, InvalidRequest, WorkbenchError
from workbench.hints import Command
from workbench.metrics import profile_rank
from workbench.session.current import current_client
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client

    from workbench.metrics.profile_frame import ProfileFrame, WaitedSeconds

_PURPOSE = "a profile"


class Profile:
    """Measures all ranks of a cluster from its begin to its end.

    Parameters
    ----------
    client : distributed.Client, optional
        Client of the cluster. Default: the current client.

    Notes
    -----
    A ``with`` block begins and ends the profile, also if an error or Ctrl-C leaves the block. Several profiles may run
    simultaneously, also those of several clients. Each rank drops a profile that has not ended after a day.

    During a profile an MPI operation takes about 2 µs more, to find its call site. SPMD calls that were running when
    the profile began have no call sites. The end takes a little more than a second, until all ranks have sent the head
    their last synchronizations.

    Examples
    --------
    >>> with Profile() as profile:
    ...     workbench.run_on_ranks(lambda comm: comm.allreduce(comm.rank), result="root")
    6
    >>> print(profile.frame)  # doctest: +ELLIPSIS
    4 ranks, ... in MPI
    ...
    operation calls seconds % of MPI bytes
    allreduce     4 ...
    >>> list(profile.frame.sites)
    ['operation', 'place', 'calls', 'seconds', 'percent', 'bytes']
    """

    def __init__(self, client: Client | None = None) -> None:
        self._requested_client = client
        self._name = uuid.uuid4().hex
        self._begun: Mapping[str, str] = {}
        self._frame: ProfileFrame | None = None

    @property
    def frame(self) -> ProfileFrame:
        """The result of the profile.

        Raises
        ------
        InvalidRequest
            If the profile has not ended.
        """
        if self._frame is None:
            raise InvalidRequest(
                "This profile has no frame, because the profile has not ended or has failed. Leave the with block, or "
                "begin another profile."
            )
        return self._frame

    def begin(self) -> Self:
        """Begin on all ranks, before the ``with`` block.

        Returns
        -------
        Profile
            The profile itself.

        Raises
        ------
        InvalidRequest
            If there is no cluster, or its metrics are off (``workbench.metrics.enabled``).
        CollectiveTimeout
            If a rank does not answer.
        HeadUnreachable
            If the head does not answer.
        """
        self._client = current_client(self._requested_client)
        try:
            self._begun = _run(self._client, profile_rank.begin, self._name)
            self._waited_before = _request_wait_times(self._client)
        except BaseException:
            # Ranks that have begun the profile would keep searching for call sites.
            with contextlib.suppress(Exception):
                _run(self._client, profile_rank.end, self._name)
            raise
        return self

    def _end(self) -> None:
        from workbench.metrics.profile_frame import ProfileFrame

        begun, self._begun = self._begun, {}
        replies = _run(self._client, profile_rank.end, self._name)
        counts = {address: reply for address, reply in replies.items() if reply}
        missing = [f"rank {name}" for address, name in begun.items() if address not in counts]
        before, after = _waited_seconds(self._waited_before), _waited_seconds(_request_wait_times(self._client))
        self._frame = ProfileFrame(counts.values(), missing, profile_rank.since(after, before))

    def __enter__(self) -> Self:
        return self if self._begun else self.begin()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self._end()
        except WorkbenchError as profile_error:
            if error is None:
                raise
            error.add_note(f"The profile failed: {profile_error}")


def since_start(client: Client) -> ProfileFrame:
    """Return the profile of all ranks since their start; raises what `Profile.begin` does."""
    from workbench.metrics.profile_frame import ProfileFrame

    counts = _run(client, profile_rank.since_start).values()
    return ProfileFrame(counts, waited=_waited_seconds(_request_wait_times(client)))


def _run(client: Client, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Run a function on every rank, and return its values by the address of the worker."""
    timeout = config.seconds("connect-timeout")

    async def run() -> dict[str, Any]:
        async with asyncio.timeout(timeout):
            replies: dict[str, Any] = await client.run(function, *args, on_error="return")
            return replies

    try:
        replies = client.sync(run)
    except TimeoutError as error:
        raise CollectiveTimeout(
            f"A profile needs all ranks, and not all ranks answered within {timeout:.0f} s. A rank may be in C code "
            "that holds the GIL.",
            hint=(Command("where"), " shows the position of each rank in an SPMD call."),
        ) from error
    except OSError as error:
        raise ClientHead(client, _PURPOSE).unreachable(error) from error
    for reply in replies.values():
        # An OSError is that of a rank that is dying.
        if isinstance(reply, Exception) and not isinstance(reply, OSError):
            raise reply
    return {address: reply for address, reply in replies.items() if not isinstance(reply, Exception)}


def _request_wait_times(client: Client) -> Promise[Any]:
    """Request the wait times of all ranks until now; the head answers when it has received them."""
    head, timeout = ClientHead(client, _PURPOSE), config.seconds("connect-timeout")
    return head.submit("workbench_metrics_met", timeout, mark=head.wait("workbench_metrics_mark", timeout))


def _waited_seconds(reply: Promise[Any]) -> WaitedSeconds:
    return {(rank, operation): seconds for rank, operation, *seconds in reply.result()}
