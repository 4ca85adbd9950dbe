"""The pace of trials: how long 40 of them take on 4 ranks that do nothing else."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import optuna
import pytest

from workbench.tune import tune

TRIALS, SECONDS, LIMIT, ROUNDS = 40, 0.25, 1.25, 5


@pytest.mark.long
def test_forty_trials_take_little_more_than_their_own_time(client4, capsys):
    def objective(comm, trial, seconds):
        threading.Event().wait(seconds)  # as a trial that waits for a device
        return trial.suggest_float("x", 0, 1)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ratios = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        study = tune(objective, optuna.create_study(), TRIALS, SECONDS, client=client4)
        ratios.append((time.monotonic() - began) / (TRIALS * SECONDS / 4))
        assert len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE])) == TRIALS
    with capsys.disabled():
        sys.stdout.write(f"times of {TRIALS} trials on 4 ranks, as parts of the ideal: {np.round(ratios, 2)}\n")

    assert min(ratios) <= LIMIT
