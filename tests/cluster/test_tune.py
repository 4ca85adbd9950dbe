"""Trials of Optuna studies on groups of ranks."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import optuna
import pytest
from distributed import Client
from support.processes import DEADLINE, until
from support.raised import raises
from support.spmd import doing, meet, total, wait_for

from benchmarks import tune as bench
from workbench import MPICluster, broadcast, place, rank, run_on_ranks
from workbench.errors import InvalidRequest, RankLost
from workbench.launch import mpi_library
from workbench.tune import tune

COMPLETE, FAIL, PRUNED = (optuna.trial.TrialState[name] for name in ("COMPLETE", "FAIL", "PRUNED"))


@pytest.fixture(autouse=True)
def _calm():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(optuna.logging.INFO)


def study(**options):
    return optuna.create_study(**options)


def states(its):
    return [trial.state for trial in its.trials]


def running(client):
    return sorted(rank for rank, what in client.run(doing).values() if what != "")


def nothing(comm, trial, *_):
    return 0.0


def hold(comm, trial, folder):
    """Note where a trial runs, and wait for its end."""
    place = comm.allgather(rank.current().rank)
    if comm.rank == 0:
        (folder / f"begun {trial.number}").write_text(str(place))
    wait_for(folder / f"end {trial.number}")
    return comm.allreduce(trial.number)


@pytest.mark.mpi_flavor
def test_groups_run_trials_at_once_and_each_has_a_communicator_of_its_own(client4, tmp_path):
    def objective(comm, trial, folder):
        number, other = trial.number, trial.number ^ 1
        x = trial.suggest_float("x", 0, 1)
        rank, came, size = meet(comm, str(folder / f"{number}"), str(folder / f"{other}"))
        assert came == 2 * [(str(folder / f"{number}"), 0), (str(folder / f"{number}"), 1)]
        assert comm.allgather(x) == [x, x]
        trial.set_user_attr("ranks", comm.allgather(rank))
        return size

    its = study()
    assert tune(objective, its, 6, tmp_path, ranks=2, client=client4) is its

    assert [trial.values for trial in its.trials] == [[2.0]] * 6
    assert {tuple(trial.user_attrs["ranks"]) for trial in its.trials} == {(0, 1), (2, 3)}


def test_a_group_has_its_next_trial_while_the_others_run(client4, tmp_path):
    its = study()

    def watch():
        until("four trials", lambda: len([*tmp_path.glob("begun*")]) == 4)
        (tmp_path / "end 2").touch()
        until("the fifth", (tmp_path / "begun 4").exists)
        busy.extend(running(client4))
        for number in range(5):
            (tmp_path / f"end {number}").touch()

    busy = []
    watching = threading.Thread(target=watch)
    watching.start()
    tune(hold, its, 5, tmp_path, client=client4)
    watching.join(DEADLINE)

    assert busy == [0, 1, 2, 3]
    assert [trial.value for trial in its.trials] == [0, 1, 2, 3, 4]
    assert (tmp_path / "begun 4").read_text() == (tmp_path / "begun 2").read_text() == "[2]"


def test_the_best_of_a_grid_is_that_of_optuna_alone(client4):
    grid = {"x": [-1.0, 0.0, 2.0, 3.0], "y": [1, 4]}

    def value(trial):
        return (trial.suggest_float("x", -5, 5) - 2) ** 2 + trial.suggest_int("y", 1, 4)

    alone, ours = (study(sampler=optuna.samplers.GridSampler(grid, seed=1)) for _ in range(2))
    alone.optimize(value, 8)
    tune(lambda _, trial: value(trial), ours, 99, client=client4)

    assert ours.best_params == alone.best_params == {"x": 2.0, "y": 1}
    # The sampler ends the study after the grid.
    assert sorted(trial.value for trial in ours.trials[:8]) == sorted(trial.value for trial in alone.trials)


def test_an_objective_decides_as_it_runs_what_it_asks_for_and_can_be_pruned(client4):
    def objective(comm, trial):
        import optuna

        kind = trial.suggest_categorical("kind", ["flat", "steep", None])
        if kind is None:
            return 0.0
        slope = (
            trial.suggest_float("slope", 1e-3, 1.0, log=True)
            if kind == "flat"
            else trial.suggest_int("k", 2, 8, step=2)
        )
        assert trial.params == {"kind": kind, "slope" if kind == "flat" else "k": slope}
        for step in range(4):
            trial.report(slope * step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return slope

    its = study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=optuna.pruners.ThresholdPruner(upper=3.5))
    for kind in ("flat", "steep", None):
        its.enqueue_trial({"kind": kind})
    tune(objective, its, 10, ranks=2, client=client4)

    kinds = {trial.params["kind"]: trial for trial in its.trials[:3]}
    assert [kinds[kind].state for kind in ("flat", "steep", None)] == [COMPLETE, PRUNED, COMPLETE]
    assert len(kinds["flat"].intermediate_values) == 4
    assert kinds["steep"].value == kinds["steep"].last_step * kinds["steep"].params["k"] > 3.5
    assert FAIL not in states(its)


def test_each_trial_is_a_curve_of_the_training_page(cluster4, client4):
    def objective(comm, trial):
        for step in range(3):
            trial.report(trial.number + step, step)
        return 0.0

    tune(objective, study(study_name="curves"), 2, ranks=2, client=client4)

    def curves():
        fits = cluster4.metrics("fits").reindex(columns=["name", "value"])  # before the first record there is no value
        return {name: list(fits[fits["name"] == name]["value"]) for name in ("curves, trial 0", "curves, trial 1")}

    until("the curves", lambda: curves() == {"curves, trial 0": [0, 1, 2], "curves, trial 1": [1, 2, 3]})


def test_a_trial_that_fails_on_any_rank_is_failed_and_the_study_goes_on(client4, caplog):
    def objective(comm, trial):
        if trial.number in (1, 2) and comm.rank == trial.number - 1:
            raise ValueError("a bad number")
        return float(comm.allreduce(1))

    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        its = tune(objective, study(), 5, ranks=2, client=client4)
    finally:
        optuna.logging.disable_propagation()

    assert states(its) == [COMPLETE, FAIL, FAIL, COMPLETE, COMPLETE]
    assert sorted({record.getMessage() for record in caplog.records}) == [
        f"Trial {number} failed: ValueError: a bad number" for number in (1, 2)
    ]


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(1)], ids=repr)
def test_errors_that_do_not_travel_are_failures_of_the_trial(client4, error):
    def objective(comm, trial):
        if trial.number < 5:
            raise error
        return 1.0

    assert states(tune(objective, study(), 8, client=client4)) == [FAIL] * 5 + [COMPLETE] * 3


def test_an_attribute_that_is_too_large_fails_its_trial_alone(client4):
    def objective(comm, trial):
        trial.set_user_attr("weights", bytes(2 << 20) if trial.number == 0 else b"")
        return 1.0

    assert states(tune(objective, study(), 3, client=client4)) == [FAIL, COMPLETE, COMPLETE]


def test_what_the_study_refuses_is_raised_in_the_objective(client4):
    def objective(comm, trial):
        try:
            trial.suggest_float("x", 1, 0)
        except ValueError as error:
            return float("low" in str(error))

    assert tune(objective, study(), 1, ranks=4, client=client4).best_value == 1.0


def test_an_objective_may_stop_its_study(client4):
    def stop(comm, trial):
        trial.study.stop()
        return comm.allreduce(1.0)

    study = tune(stop, optuna.create_study(), 9, ranks=4, client=client4)
    assert [trial.value for trial in study.trials] == [4.0]


def test_an_error_that_is_not_to_be_caught_ends_all_trials(client4, tmp_path):
    def objective(comm, trial, folder):
        if trial.number != 1:
            (folder / f"{trial.number}").touch()
            wait_for("/never")
        for number in (0, 2, 3):
            wait_for(folder / f"{number}")
        raise ZeroDivisionError("not to be caught")

    its = study()
    with raises(ZeroDivisionError, args=("not to be caught",)) as caught:
        tune(objective, its, 9, tmp_path, client=client4, catch=(ValueError, OSError))

    assert caught.value.__notes__ == ["raised on rank 1, in trial 1"]
    assert states(its) == [FAIL] * 4
    until("all trials to end", lambda: not running(client4))
    assert run_on_ranks(total, client=client4) == [6] * 4


def test_ctrl_c_ends_all_trials(client4, tmp_path):
    its, main = study(), threading.main_thread().ident

    def interrupt():
        until("four trials", lambda: len([*tmp_path.glob("begun*")]) == 4)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tune(hold, its, 40, tmp_path, client=client4)
    thread.join(DEADLINE)

    assert states(its) == [FAIL] * 4
    until("all trials to end", lambda: not running(client4))
    assert run_on_ranks(total, client=client4) == [6] * 4


def test_the_time_of_a_trial_can_be_limited(client4):
    def objective(comm, trial):
        wait_for("/never" if trial.number == 0 else "/")
        return 1.0

    assert states(tune(objective, study(), 8, client=client4, ranks=4, timeout="1 s")) == [FAIL] + [COMPLETE] * 7


def test_large_and_broadcast_arguments_are_sent_once_and_placed_ones_are_refused(client4):
    large, table = np.ones(1 << 18), np.arange(8.0)[:, None]

    def objective(comm, trial, first, second, *, name):
        return float(first.sum() + second.sum() + name.sum()) + len(large)

    future = broadcast(client4, table)
    before = client4.who_has()
    its = tune(objective, study(), 6, large, future, client=client4, name=large)
    assert [trial.value for trial in its.trials] == [3 * (1 << 18) + 28.0] * 6
    del its
    until("the arguments are released", lambda: client4.who_has().keys() == before.keys())

    its = study()
    X = place(table, client=client4)
    with raises(InvalidRequest, option="ranks", given="[0]", allowed=()):
        tune(nothing, its, 6, X, client=client4)
    assert set(states(its)) == {FAIL}


@pytest.mark.parametrize(("option", "given"), [("ranks", 5), ("ranks", 0), ("trials", "1.5"), ("study", None)])
def test_what_cannot_be_tuned_is_refused(client4, option, given):
    options = {"study": study(), "trials": 1, option: given}
    with raises(InvalidRequest, option=option, given=given):
        tune(nothing, client=client4, **options)


@pytest.mark.mpi_flavor
def test_a_study_goes_on_without_the_group_of_a_rank_that_is_lost(tmp_path):
    survives = mpi_library.find().flavor == "openmpi"

    def objective(comm, trial, folder, victim):
        if trial.number == victim:
            (folder / "pid").write_text(str(os.getpid()))
            wait_for("/never")
        if trial.number < 2:
            wait_for(folder / "pid")
        elif not survives:  # the rank must not end all trials before the world ends
            wait_for("/never")
        return float(comm.allreduce(1))

    def kill():
        until("the victim", lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        its, thread = study(), threading.Thread(target=kill)
        thread.start()
        if survives:
            tune(objective, its, 6, Path(tmp_path), 1, client=client)
            assert states(its) == [COMPLETE, FAIL, *[COMPLETE] * 4]
        else:  # the world ends with the rank
            with pytest.raises(RankLost):
                tune(objective, its, 6, Path(tmp_path), 1, client=client)
            assert FAIL in states(its)
        thread.join(DEADLINE)


@pytest.mark.parametrize("group", [1, 2, 3])
def test_both_arms_of_the_bench_have_the_same_values(client4, group):
    assert bench.tuned(client4, 5, 0.01, group) == bench.shared(client4, 5, 0.01, group) == [49, 36, 25, 16, 9]
