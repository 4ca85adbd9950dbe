"""Hyperparameters: the trials of an Optuna study, each on a group of ranks.

``import workbench.tune`` imports neither Optuna (``pip install 'mpi-workbench[tune]'``) nor MPI.
"""

from __future__ import annotations

from workbench.tune.study import tune
from workbench.tune.trial import RankTrial

__all__ = ["RankTrial", "tune"]
