"""`tune`: runs the trials of an Optuna study on groups of ranks, several trials at the same time."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from workbench import broadcast, spmd
from workbench.collective import serialize
from workbench.collective.protocol import LARGE
from workbench.errors import (
    CollectiveFailed,
    CollectiveTimeout,
    HeadUnreachable,
    InvalidRequest,
    PlacementError,
    RankLost,
)
from workbench.extension import current_client
from workbench.placement import pinning
from workbench.placement.inside import estimated_bytes
from workbench.positions import ranges
from workbench.tune.trial import STOP, run

if TYPE_CHECKING:
    import optuna
    from distributed import Client

    from workbench.extension import Event, SpmdFunction

# Seconds between two checks that the client is open, and that the ranks of a group have returned from a trial.
_POLL_S, _RETURN_S = 5.0, 1.0


def tune(
    objective: Callable[..., Any],
    study: optuna.Study,
    trials: int,
    *args: Any,
    ranks: int = 1,
    client: Client | None = None,
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
    groups = _groups(client, ranks)
    # Otherwise each trial would send large objects again.
    limit = LARGE // (1 + len(args) + len(kwargs))

    def once(thing: Any) -> Any:
        return broadcast(client, thing) if _is_large(thing, limit) else thing

    objective, args = once(objective), tuple(map(once, args))
    kwargs = {name: once(value) for name, value in kwargs.items()}
    options = {"client": client, "result": "root", "limit": None, "timeout": timeout}
    tuning = _Tuning(client, study, (objective, args, kwargs), options, catch)
    tuning.run(trials, groups)
    return study


@dataclass(frozen=True)
class _Running:
    """A running trial and its group."""

    trial: optuna.Trial
    group: Mapping[int, str]
    """Addresses of the group, by rank."""
    call: Future[Any]


class _Tuning:
    """The trials of one call of `tune`. All work is done by the thread of `run`; callbacks of calls only queue it."""

    def __init__(
        self,
        client: Client,
        study: optuna.Study,
        work: Sequence[Any],
        options: Mapping[str, Any],
        catch: type[Exception] | tuple[type[Exception], ...],
    ) -> None:
        self._client, self._study, self._work, self._options, self._catch = client, study, work, options, catch
        self._identity = uuid.uuid4().hex
        self._work_due: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: dict[int, _Running] = {}
        self._free: deque[Mapping[int, str]] = deque()
        # Groups of which a rank has not returned from a trial.
        self._busy: list[Mapping[int, str]] = []
        self._left = 0
        # The error of the group that was lost last.
        self._lost: Exception | None = None

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
                running.call.cancel()
            for running in self._running.values():
                with contextlib.suppress(Exception):  # of the storage; the first error is the cause
                    self._study.tell(running.trial, state=TrialState.FAIL, skip_if_finished=True)
        if self._left and self._lost is not None:
            raise self._lost

    def _next(self) -> Callable[[], None]:
        while True:
            try:
                return self._work_due.get(timeout=_POLL_S)
            except queue.Empty:
                # No callback reports the end of the client.
                if self._client.status == "closed":
                    raise HeadUnreachable("the client was closed while trials ran.") from None

    def _begin(self, group: Mapping[int, str]) -> None:
        from optuna.trial import TrialState

        trial = self._study.ask()
        number = trial.number
        objective, args, kwargs = self._work
        given = [objective, f"{self._identity}-{number}", number, self._study.study_name, *args]
        asked = functools.partial(self._asked, number)
        try:
            call = self._call(f"trial {number}", group, asked)(run).submit(*given, **kwargs)
        except BaseException:
            self._study.tell(trial, state=TrialState.FAIL)
            raise
        self._running[number] = _Running(trial, group, call)
        over = functools.partial(self._over, number)
        call.add_done_callback(lambda _: self._work_due.put(over))

    def _call(
        self, name: str, group: Mapping[int, str], on_event: Callable[[Event], None] | None = None
    ) -> Callable[[Callable[..., Any]], SpmdFunction]:
        return spmd(**self._options, ranks=[*group], name=name, on_event=on_event)

    def _asked(self, number: int, event: Event) -> None:
        self._work_due.put(functools.partial(self._answer, number, event))

    def _wait_for_return(self, group: Mapping[int, str]) -> None:
        """Release a group when its ranks run a call again."""

        def returned(call: Future[Any]) -> None:
            try:
                call.result()
            except (RankLost, HeadUnreachable) as error:
                self._lost = error
            except (CollectiveFailed, CollectiveTimeout):
                again = threading.Timer(_RETURN_S, self._work_due.put, [lambda: self._wait_for_return(group)])
                again.daemon = True
                again.start()
                return
            else:
                present: dict[int, str] = {}
                with contextlib.suppress(PlacementError):  # no rank is there
                    present = _addresses(self._client)
                if group.items() <= present.items():
                    self._free.append(group)
                else:  # the world has started again meanwhile
                    self._lost = RankLost(f"ranks {ranges(group)} were lost while trials ran.", ranks=group)
            self._busy.remove(group)

        call = self._call("a check of the ranks", group)(_nothing).submit()
        call.add_done_callback(lambda call: self._work_due.put(functools.partial(returned, call)))

    def _answer(self, number: int, event: Event) -> None:
        """Answer a request of a trial."""
        if number not in self._running:
            return
        trial = self._running[number].trial
        try:
            name, args, kwargs = event.value
            if name == STOP:
                self._left = 0
            attribute = None if name == STOP else getattr(trial, name)
            event.answer((attribute(*args, **kwargs) if callable(attribute) else attribute, None))
        except Exception as error:  # noqa: BLE001  (the ranks raise the error)
            try:
                event.answer((None, error))
            except InvalidRequest:
                event.answer((None, RuntimeError(f"{type(error).__name__}: {error}")))

    def _over(self, number: int) -> None:
        """Report the end of a trial to the study, and release its group."""
        import optuna

        running = self._running[number]
        try:
            value = running.call.result()
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
    """Return immediately, on the ranks of a group."""


def _require(study: Any, trials: Any, ranks: Any) -> None:
    if find_spec("optuna") is None:
        raise InvalidRequest(
            "Optuna is not installed. Run pip install 'mpi-workbench[tune]' in the environment of the cluster."
        )
    import optuna

    if not isinstance(study, optuna.Study):
        raise InvalidRequest(option="study", given=study, allowed="a study of optuna.create_study()")
    for name, value in (("trials", trials), ("ranks", ranks)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidRequest(option=name, given=value, allowed=f"a number of {name} above zero")


def _groups(client: Client, ranks: int) -> list[dict[int, str]]:
    """Return the addresses of each group by rank; the ranks of a group are neighbors, which share a node."""
    addresses = [*_addresses(client).items()]
    if ranks > len(addresses):
        allowed = f"at most {len(addresses)}, the ranks of the cluster"
        raise InvalidRequest(option="ranks", given=ranks, allowed=allowed)
    return [dict(addresses[first : first + ranks]) for first in range(0, len(addresses) - ranks + 1, ranks)]


def _addresses(client: Client) -> dict[int, str]:
    """Return the addresses of the ranks, by rank."""
    ranks = pinning.target_workers(client, "rank")
    return {rank.name: rank.address for rank in ranks if isinstance(rank.name, int)}


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
