"""Profiles: what all ranks did in some time, as mpiP tells it of a program."""

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
from workbench.session.current_client import current_client
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client

    from workbench.metrics.profile_frame import ProfileFrame, WaitedSeconds

_PURPOSE = "a profile"


class Profile:
    """Measures what all ranks of a cluster do, from its begin to its end.

    Parameters
    ----------
    client
        Of the cluster. Default: the current one.

    Notes
    -----
    A ``with`` block begins and ends it, also where an error or Ctrl-C leaves the block. Several profiles may go on at
    once, of several clients, too. Each rank forgets one that was not ended after a day.

    Until it ends, an operation of MPI takes about two microseconds more, to find out from where it was called. Calls on
    all ranks that were going on when it began have no call sites. To end takes a good second, until all ranks have told
    the head when they have met.

    Examples
    --------
    >>> with Profile() as its:                             # doctest: +SKIP
    ...     run_on_ranks(solve, X)
    >>> print(its.frame)                                   # doctest: +SKIP
    >>> its.frame.sites.head(1)                            # doctest: +SKIP
    """

    def __init__(self, client: Client | None = None) -> None:
        self._given = client
        self._name = uuid.uuid4().hex
        self._begun: Mapping[str, str] = {}
        self._frame: ProfileFrame | None = None

    @property
    def frame(self) -> ProfileFrame:
        """What was measured, once it has ended.

        Raises
        ------
        InvalidRequest
            If it has not.
        """
        if self._frame is None:
            raise InvalidRequest("this profile has no frame: it has not ended, or could not be measured")
        return self._frame

    def begin(self) -> Self:
        """Begin on all ranks, ahead of the ``with`` block.

        Raises
        ------
        InvalidRequest
            If there is no cluster, or its ranks count nothing (``workbench.metrics.enabled``).
        CollectiveTimeout
            If a rank does not answer.
        HeadUnreachable
            If the head does not.
        """
        self._client = current_client(self._given)
        try:
            self._begun = _ask(self._client, profile_rank.begin, self._name)
            self._met = _ask_head(self._client)
        except BaseException:
            # Some may have begun, and would go on to look where each operation is called from.
            with contextlib.suppress(Exception):
                _ask(self._client, profile_rank.end, self._name)
            raise
        return self

    def _end(self) -> None:
        from workbench.metrics.profile_frame import ProfileFrame

        begun, self._begun = self._begun, {}
        told = {address: its for address, its in _ask(self._client, profile_rank.end, self._name).items() if its}
        missing = [f"rank {name}" for address, name in begun.items() if address not in told]
        before, after = _told(self._met), _told(_ask_head(self._client))
        self._frame = ProfileFrame(told.values(), missing, profile_rank.since(after, before))

    def __enter__(self) -> Self:
        return self if self._begun else self.begin()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self._end()
        except WorkbenchError as its:
            if error is None:
                raise
            error.add_note(f"What it has taken was not measured: {its}")


def since_start(client: Client) -> ProfileFrame:
    """Return what all ranks did since they were started; raises what `Profile.begin` does."""
    from workbench.metrics.profile_frame import ProfileFrame

    return ProfileFrame(_ask(client, profile_rank.since_start).values(), met=_told(_ask_head(client)))


def _ask(client: Client, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Return what a function returns on each rank that is there, by the address of its worker."""
    timeout = config.seconds("connect-timeout")

    async def ask() -> dict[str, Any]:
        async with asyncio.timeout(timeout):
            answers: dict[str, Any] = await client.run(function, *args, on_error="return")
            return answers

    try:
        answers = client.sync(ask)
    except TimeoutError as error:
        raise CollectiveTimeout(
            f"a profile asks all ranks, and they did not all answer within {timeout:.0f} s: code that lets no other "
            "thread run keeps a rank from it.",
            hint=(Command("where"), " tells where ranks are in a call on all of them."),
        ) from error
    except OSError as error:
        raise ClientHead(client, _PURPOSE).unreachable(error) from error
    for answer in answers.values():
        # but for ranks that are just dying
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise answer
    return {address: answer for address, answer in answers.items() if not isinstance(answer, Exception)}


def _ask_head(client: Client) -> Promise[Any]:
    """Begin to ask how long ranks have waited for others until now: the head tells it when it has heard of it."""
    head, timeout = ClientHead(client, _PURPOSE), config.seconds("connect-timeout")
    return head.submit("workbench_metrics_met", timeout, until=head.wait("workbench_time", timeout))


def _told(answer: Promise[Any]) -> WaitedSeconds:
    return {(world, rank, operation): seconds for world, rank, operation, *seconds in answer.result()}
