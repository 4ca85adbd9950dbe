"""`tune`: runs the trials of an Optuna study on groups of ranks, several trials at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from workbench.collective import serialize
from workbench.collective.broadcast import broadcast
from workbench.collective.client import PendingCall
from workbench.collective.positions import ranges
from workbench.collective.request import LARGE, request
from workbench.errors import (
    CollectiveFailed,
    CollectiveTimeout,
    HeadUnreachable,
    InvalidRequest,
    PlacementError,
    RankLost,
)
from workbench.placement import pinning
from workbench.placement.globals import estimated_bytes
from workbench.session.current import current_client
from workbench.tune.trial import STOP, answer, failure, identity_of, run

if TYPE_CHECKING:
    import optuna
    from distributed import Client

# Seconds between two checks that the client is open.
_LOOK = 5.0
# Seconds for an event to return, and the number of events that are sent until one returns.
_ECHO, _ECHOES = 0.25, 120
# Seconds between two checks that the ranks of a group have returned from a trial.
_RETURN = 1.0


def tune(
    objective: Callable[..., Any],
    study: optuna.Study,
    trials: int,
    *args: Any,
    ranks: int = 1,
    client: Client | None = None,
    world: int = 0,
    timeout: float | str | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    **kwargs: Any,
) -> optuna.Study:
    """Run trials of an Optuna study, each on a group of ranks; all groups run at the same time.

    Parameters
    ----------
    objective : callable
        Called on each rank of a group as ``objective(comm, trial, *args, **kwargs)``. The communicator has the ranks
        of the group; `trial` is a `RankTrial`, with ``suggest_float``, ``suggest_int``, ``suggest_categorical``,
        ``report`` and ``should_prune``. The result on the first rank of the group is the value, or the values, of the
        trial.
    study : optuna.Study
        A study of ``optuna.create_study()``, with any sampler, pruner and storage. The study stays in this process.
    trials : int
        Number of trials to run.
    *args, **kwargs : object
        Further arguments of the objective. Futures, such as that of ``broadcast(X)``, are replaced by their values.
    ranks : int, default=1
        Number of ranks of each group. Ranks that do not fill a group run no trials.
    client : distributed.Client, optional
        Client of the cluster. Default: the current client.
    world : int, default=0
        Index of the MPI world.
    timeout : float or str, optional
        Seconds, or a time span such as ``"10 minutes"``, for each trial. Default: no limit.
    catch : exception class or tuple of exception classes, default=Exception
        Errors of the objective after which the trial has failed and the study continues. Other errors end all trials,
        and are raised.

    Returns
    -------
    optuna.Study
        The study.

    Raises
    ------
    InvalidRequest
        If an argument is not valid, or Optuna is not installed.
    RankLost, CollectiveFailed
        If no group can run trials any more.

    Notes
    -----
    The sampler and the pruner run in this process, in the order of the requests of the ranks. So the sampler sees all
    trials, and the ranks need no access to the storage. A trial that raises ``optuna.TrialPruned`` is pruned. A trial
    with any other error, or with a lost rank, has failed, with a warning in Optuna's log. Ctrl-C ends the running
    trials on all ranks, and marks these trials as failed. Other calls on the ranks get their turn between trials.

    Examples
    --------
    >>> import optuna
    >>> def objective(comm, trial):
    ...     x = trial.suggest_float("x", -10, 10)
    ...     return (x - 2) ** 2
    >>> study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    >>> round(tune(objective, study, 40, ranks=2).best_params["x"], 2)
    2.06
    """
    _require(study, trials, ranks)
    client = current_client(client)
    groups = _groups(client, world, ranks)
    # Otherwise each trial would send large objects again.
    limit = LARGE // (1 + len(args) + len(kwargs))

    def once(thing: Any) -> Any:
        return broadcast(client, thing) if _is_large(thing, limit) else thing

    objective, args = once(objective), tuple(map(once, args))
    kwargs = {name: once(value) for name, value in kwargs.items()}
    options = {"client": client, "result": "root", "world": world, "limit": None, "timeout": timeout}
    tuning = _Tuning(client, study, (objective, args, kwargs), options, catch)
    with tuning.listening():
        tuning.run(trials, groups)
    return study


@dataclass(frozen=True)
class _Running:
    """A running trial and its group."""

    trial: optuna.Trial
    group: Mapping[int, str]
    """Addresses of the group, by rank."""
    call: PendingCall


class _Tuning:
    """The trials of one call of `tune`. Only `_heard` runs on another thread, the event loop of the client."""

    def __init__(
        self,
        client: Client,
        study: optuna.Study,
        work: Sequence[Any],
        options: Mapping[str, Any],
        catch: type[Exception] | tuple[type[Exception], ...],
    ) -> None:
        self._client, self._study, self._work, self._options, self._catch = client, study, work, options, catch
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop  # type: ignore[union-attr]
        self._topic = f"workbench-tune-{uuid.uuid4().hex}"
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._subscribed = threading.Event()
        self._running: dict[int, _Running] = {}
        self._free: deque[Mapping[int, str]] = deque()
        # Groups of which a rank has not returned from a trial.
        self._busy: list[Mapping[int, str]] = []
        self._left = 0
        # The error of the group that was lost last.
        self._lost: Exception | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive the requests of trials in this context."""
        # The client keeps its handlers, also after the end of the subscription.
        this = weakref.ref(self)

        def hear(event: tuple[float, Mapping[str, Any]]) -> None:
            if (tuning := this()) is not None:
                tuning._heard(event)  # noqa: SLF001  (of this class)

        self._client.subscribe_topic(self._topic, hear)
        try:
            # The call of a trial has another connection, and may reach the head before the subscription.
            for _ in range(_ECHOES):
                self._client.log_event(self._topic, {"trial": None})
                if self._subscribed.wait(_ECHO):
                    break
            else:
                raise HeadUnreachable(f"the head sent no events of trials within {_ECHO * _ECHOES:g} s.")
            yield
        finally:
            if self._client.status == "running":
                self._client.unsubscribe_topic(self._topic)

    def _heard(self, event: tuple[float, Mapping[str, Any]]) -> None:
        message = event[1]
        if message["trial"] is None:
            self._subscribed.set()
        else:
            self._news.put(functools.partial(self._question, message["trial"], message["question"]))

    def run(self, trials: int, groups: Sequence[Mapping[int, str]]) -> None:
        """Run trials until all have ended."""
        from optuna.trial import TrialState

        self._left = trials
        self._free.extend(groups)
        try:
            while self._running or (self._left and (self._free or self._busy)):
                if self._left and self._free:
                    self._left -= 1
                    self._begin(self._free.popleft())
                else:
                    self._next()()
        finally:
            for running in self._running.values():
                running.call.future.cancel()
            for running in self._running.values():
                with contextlib.suppress(Exception):  # of the storage; the first error is the cause
                    self._study.tell(running.trial, state=TrialState.FAIL, skip_if_finished=True)
        if self._left and self._lost is not None:
            raise self._lost

    def _next(self) -> Callable[[], None]:
        while True:
            try:
                return self._news.get(timeout=_LOOK)
            except queue.Empty:
                # If the loop of the client has ended, no event reports the end of the client.
                if self._loop.is_closed() or not self._loop.is_running():
                    raise HeadUnreachable("the client was closed while trials ran.") from None

    def _begin(self, group: Mapping[int, str]) -> None:
        from optuna.trial import TrialState

        trial = self._study.ask()
        objective, args, kwargs = self._work
        given = [objective, self._topic, trial.number, self._study.study_name, *args]
        try:
            call = self._call(f"trial {trial.number}", group, run, *given, **kwargs)
        except BaseException:
            self._study.tell(trial, state=TrialState.FAIL)
            raise
        self._running[trial.number] = _Running(trial, group, call)
        over = functools.partial(self._over, trial.number)
        call.start()
        call.future.add_brief_callback(lambda _: self._news.put(over))

    def _call(
        self, name: str, group: Mapping[int, str], function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> PendingCall:
        return PendingCall(request(function, args, kwargs, ranks=[*group], name=name, **self._options))

    def _wait_for_return(self, group: Mapping[int, str]) -> None:
        """Release a group when its ranks run a call again."""
        call = self._call("a check of the ranks", group, _nothing)

        def returned() -> None:
            try:
                call.future.result()
            except (RankLost, HeadUnreachable) as error:
                self._lost = error
            except (CollectiveFailed, CollectiveTimeout):
                again = functools.partial(self._news.put, functools.partial(self._wait_for_return, group))
                self._loop.call_soon_threadsafe(self._loop.call_later, _RETURN, again)
                return
            else:
                present: dict[int, str] = {}
                with contextlib.suppress(PlacementError):  # no rank is there
                    present = _addresses(self._client, self._options["world"])
                if group.items() <= present.items():
                    self._free.append(group)
                else:  # the world has started again meanwhile
                    self._lost = RankLost(f"ranks {ranges(group)} were lost while trials ran.")
            self._busy.remove(group)

        call.start()
        call.future.add_brief_callback(lambda _: self._news.put(returned))

    def _question(self, number: int, contents: bytes) -> None:
        """Answer a request of a trial."""
        if number not in self._running:
            return
        running = self._running[number]
        try:
            name, args, kwargs = serialize.loads(contents)
            if name == STOP:
                self._left = 0
            attribute = None if name == STOP else getattr(running.trial, name)
            reply = serialize.dumps((attribute(*args, **kwargs) if callable(attribute) else attribute, None))
        except Exception as error:  # noqa: BLE001  (the ranks raise the error)
            reply = failure(error)
        given = answer, identity_of(self._topic, number), reply
        address = next(iter(running.group.values()))
        # Nothing waits for the answer: if the rank is lost, the call of the trial reports the loss.
        sending = self._client._run(*given, workers=[address], on_error="ignore")  # noqa: SLF001
        asyncio.run_coroutine_threadsafe(sending, self._loop)

    def _over(self, number: int) -> None:
        """Report the end of a trial to the study, and release its group."""
        import optuna

        running = self._running[number]
        try:
            value = running.call.future.result()
        except optuna.TrialPruned:
            self._tell(running.trial, state=optuna.trial.TrialState.PRUNED)
        except Exception as error:  # noqa: BLE001  (errors of the objective)
            self._tell(running.trial, state=optuna.trial.TrialState.FAIL)
            del self._running[number]
            if isinstance(error, RankLost | HeadUnreachable):
                self._lost = error
                return
            if isinstance(error, InvalidRequest) or not isinstance(error, self._catch):
                raise serialize.strip_internal_frames(error) from None
            message = f"{type(error).__name__}: {error}"
            optuna.logging.get_logger("optuna.workbench").warning("Trial %d failed: %s", number, message)
            if isinstance(error, CollectiveFailed | CollectiveTimeout):
                # A rank in C code may not have returned.
                self._busy.append(running.group)
                self._wait_for_return(running.group)
                return
        else:
            self._tell(running.trial, values=value)
        self._running.pop(number, None)
        self._free.append(running.group)

    def _tell(self, trial: optuna.Trial, **end: Any) -> None:
        try:
            self._study.tell(trial, **end)
        except RuntimeError:
            # A sampler without further trials, such as that of a grid, stops the study, and Optuna raises this error.
            if not self._study.trials[trial.number].state.is_finished():
                raise
            self._left = 0


def _nothing(_: Any) -> None:
    """Return at once, on the ranks of a group."""


def _require(study: Any, trials: Any, ranks: Any) -> None:
    if find_spec("optuna") is None:
        raise InvalidRequest(
            "Optuna is not installed. Run pip install 'mpi-workbench[tune]' in the environment of the cluster."
        )
    import optuna

    if not isinstance(study, optuna.Study):
        raise InvalidRequest(f"study={study!r} is not valid. Pass a study of optuna.create_study().")
    for name, value in (("trials", trials), ("ranks", ranks)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidRequest(f"{name}={value!r} is not valid. Choose a number of {name} above zero.")


def _groups(client: Client, world: int, ranks: int) -> list[dict[int, str]]:
    """Return the addresses of each group by rank; the ranks of a group are neighbors, which share a node."""
    addresses = [*_addresses(client, world).items()]
    if ranks > len(addresses):
        raise InvalidRequest(
            f"ranks={ranks} is not valid. Choose at most {len(addresses)}, the ranks of world {world}."
        )
    return [dict(addresses[first : first + ranks]) for first in range(0, len(addresses) - ranks + 1, ranks)]


def _addresses(client: Client, world: int) -> dict[int, str]:
    """Return the addresses of the ranks of a world, by rank."""
    present = pinning.target_workers(client, pinning.of_world("rank", world))
    return {pinning.rank_order(rank.name)[2]: rank.address for rank in present}


def _is_large(thing: Any, limit: int) -> bool:
    from dask.base import is_dask_collection
    from distributed import Future

    if is_dask_collection(thing) or isinstance(thing, Future):
        return False
    if estimated_bytes(thing) > limit:
        return True
    try:
        return len(serialize.dumps(thing)) > limit
    except Exception:  # noqa: BLE001  (the request reports that the object cannot be sent)
        return False
