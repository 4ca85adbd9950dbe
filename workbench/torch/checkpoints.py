"""The checkpoint of a fit: one file, written after each epoch, from which a later fit continues."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import InvalidRequest
from workbench.files import atomic_file

if TYPE_CHECKING:
    from mpi4py import MPI

_NAME = "checkpoint"


def restored(comm: MPI.Intracomm | Any, path: str | None, kept: Mapping[str, Any]) -> list[dict[str, float]]:
    """Load the states of a checkpoint on each rank, and return the records of its epochs; none without a file.

    Parameters
    ----------
    comm
        Communicator of the fit.
    path
        The file, or None.
    kept
        Objects with a state by name: module, optimizer, scheduler.

    Raises
    ------
    InvalidRequest
        If the path is not valid, a rank does not find the file, or the file has other states.
    """
    if path is None:
        return []
    file = atomic_file.validate(_NAME, path) if comm.rank == 0 else Path(path).expanduser()
    if not comm.bcast(comm.rank == 0 and file.exists()):
        return []
    try:
        # Only tensors and plain values are loaded: a file cannot run code.
        states = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"{_NAME} {path}: rank 0 finds the file, and rank {comm.rank} does not. Choose a file on a file system "
            "that all nodes share."
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise InvalidRequest(
            f"{_NAME} {path}: the file is not a checkpoint of fit() ({_first_line(error)}). Choose another file, or "
            "remove this file to train from the beginning."
        ) from error
    stored, needed = set(states) if isinstance(states, dict) else set(), {*kept, "history"}
    if stored != needed:
        raise InvalidRequest(
            f"{_NAME} {path}: the file has {_joined(stored)}, and the fit needs {_joined(needed)}. Pass the options "
            "with which the file was written, or choose another file."
        )
    for name, thing in kept.items():
        options = [set(group) for group in getattr(thing, "param_groups", ())]
        try:
            thing.load_state_dict(states[name])
            # An optimizer accepts the options of another one, and fails in the first step.
            for needed, group in zip(options, getattr(thing, "param_groups", ()), strict=True):
                if missing := sorted(needed - set(group)):
                    raise ValueError(f"the file has no {', '.join(missing)}")  # noqa: TRY301  (one place has the message)
        except (RuntimeError, ValueError, KeyError) as error:
            raise InvalidRequest(
                f"{_NAME} {path}: the file was written for another {name} ({_first_line(error)}). Pass the {name} with "
                "which the file was written, or choose another file."
            ) from error
    history: list[dict[str, float]] = states["history"]
    return history


def save(path: str | None, kept: Mapping[str, Any], history: list[dict[str, float]]) -> None:
    """Replace the checkpoint in one step."""
    if path is None:
        return
    content = io.BytesIO()
    torch.save({name: thing.state_dict() for name, thing in kept.items()} | {"history": history}, content)
    atomic_file.write(_NAME, Path(path).expanduser(), content.getbuffer())


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # PyTorch names the class in the first line, and the difference in the next line.
    return " ".join(lines[:2]) or type(error).__name__


def _joined(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"
