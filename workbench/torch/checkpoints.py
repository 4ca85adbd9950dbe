"""The checkpoint of a fit: one file, written after each epoch, from which a later fit continues."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workbench.errors import InvalidRequest
from workbench.host import files

if TYPE_CHECKING:
    from mpi4py import MPI

_NAME = "checkpoint"
# Entries of a group of an optimizer that do not change the training.
_NO_OPTIONS = ("params", "foreach", "fused", "capturable", "differentiable")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def restored(
    comm: MPI.Intracomm | Any, path: str | None, kept: Mapping[str, Any], options: Mapping[str, str]
) -> list[dict[str, float]]:
    """Load the states of a checkpoint on each rank, and return the records of its epochs; none without a file.

    Parameters
    ----------
    comm
        Communicator of the fit.
    path
        The file, or None.
    kept
        Objects with a state by name: module, optimizer, scheduler.
    options
        Result of `described`.

    Raises
    ------
    InvalidRequest
        If the path is not valid, a rank does not find the file, or the file is damaged or has other states or options.
    """
    if path is None:
        return []
    file = files.validate(_NAME, path) if comm.rank == 0 else Path(path).expanduser()
    if not comm.bcast(comm.rank == 0 and file.exists()):
        return []
    states = _loaded(comm, file, path)
    stored, needed = set(states) if isinstance(states, dict) else set(), {*kept, "history", "options"}
    if stored != needed:
        raise InvalidRequest(
            f"{_NAME} {path}: the file has {_joined(stored)}, and the fit needs {_joined(needed)}. Pass the options "
            "with which the file was written, or choose another file."
        )
    _compare(path, states["options"], options)
    for name, thing in kept.items():
        needs = [set(group) for group in getattr(thing, "param_groups", ())]
        try:
            thing.load_state_dict(states[name])
            # An optimizer accepts the options of another one, and fails in the first step.
            for needed, group in zip(needs, getattr(thing, "param_groups", ()), strict=True):
                if missing := sorted(needed - set(group)):
                    raise ValueError(f"the file has no {', '.join(missing)}")  # noqa: TRY301  (one place has the message)
        except (RuntimeError, ValueError, KeyError) as error:
            raise InvalidRequest(
                f"{_NAME} {path}: the file was written for another {name} ({_first_line(error)}). Pass the {name} with "
                "which the file was written, or choose another file."
            ) from error
    history: list[dict[str, float]] = states["history"]
    return history


def _loaded(comm: MPI.Intracomm | Any, file: Path, path: str) -> Any:
    """Return the content of a file, or raise InvalidRequest."""
    try:
        # PyTorch does not compare the checksums.
        if damaged := zipfile.ZipFile(file).testzip():
            raise zipfile.BadZipFile(f"the checksum of {damaged} is not that of its content")  # noqa: TRY301  (one place has the message)
        # Only tensors and plain values are loaded: a file cannot run code.
        return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"{_NAME} {path}: rank 0 finds the file, and rank {comm.rank} does not. Choose a file on a file system "
            "that all nodes share."
        ) from error
    # A damaged directory of the archive makes also an error of Python, for example NotImplementedError or KeyError.
    except (
        OSError,
        RuntimeError,
        EOFError,
        LookupError,
        ValueError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
    ) as error:
        raise InvalidRequest(
            f"{_NAME} {path}: the file is not a checkpoint of fit() ({_first_line(error)}). Choose another file, or "
            "remove this file to train from the beginning."
        ) from error


def _compare(path: str, stored: Mapping[str, str], options: Mapping[str, str]) -> None:
    for option, written in stored.items():
        # Another release of PyTorch may have other options of an optimizer.
        if options.get(option, written) != written:
            raise InvalidRequest(
                f"{_NAME} {path}: the file was written with {option} {_different(written, options[option])}. Pass the "
                "options with which the file was written, or choose another file.",
                option=option,
            )


def described(kept: Mapping[str, Any], **options: Any) -> dict[str, str]:
    """Return texts of the options of a fit before its first step, by name, which a later fit from the file must have.

    Parameters
    ----------
    kept
        The objects of `restored` with their first states, which have the options of the optimizer and the scheduler.
    options
        Values of other options: plain values, functions or objects.
    """
    found = {"module": kept["module"], "optimizer": type(kept["optimizer"]), **options}
    for number, group in enumerate(kept["optimizer"].param_groups):
        prefix = f"group {number} of the optimizer: " if number else ""
        found |= {prefix + name: value for name, value in group.items() if name not in _NO_OPTIONS}
    if "schedule" in kept:
        found["schedule"] = type(kept["schedule"])
        found |= {f"schedule {name}": value for name, value in kept["schedule"].state_dict().items()}
    for name, value in options.items():
        if isinstance(value, torch.nn.Module):
            # The text of a module is that of its layers, and a loss has none.
            plain = {key: own for key, own in vars(value).items() if key[0] != "_" and key != "training"}
            found[name] = f"{value} of {plain} and { ({key: own.tolist() for key, own in value.state_dict().items()}) }"
    return {name: _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    # A function has no text but its name, which the text of an object may contain with an address.
    return _ADDRESS.sub("", getattr(value, "__qualname__", None) or str(_plain(value)))


def _plain(value: Any) -> Any:
    """Return a state with numbers of Python in place of those of NumPy, which PyTorch does not load from a file."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in {list, tuple}:
        return type(value)(map(_plain, value))
    # The state of a module is of another type, whose attributes PyTorch reads.
    return {name: _plain(item) for name, item in value.items()} if type(value) is dict else value


def save(
    path: str | None, kept: Mapping[str, Any], options: Mapping[str, str], history: list[dict[str, float]]
) -> None:
    """Replace the checkpoint in one step."""
    if path is None:
        return
    content = io.BytesIO()
    states = {name: _plain(thing.state_dict()) for name, thing in kept.items()}
    torch.save({**states, "history": history, "options": {**options}}, content)
    files.write(_NAME, Path(path).expanduser(), content.getbuffer())


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # PyTorch names the class in the first line, and the difference in the next line.
    return " ".join(lines[:2]) or type(error).__name__


def _different(written: str, given: str) -> str:
    """Return the first line that differs: the text of a module has many."""
    lines = zip(written.splitlines(), given.splitlines(), strict=False)
    pair = next((pair for pair in lines if pair[0] != pair[1]), (written, given))
    return " and this fit has ".join(line.strip() for line in pair)


def _joined(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"
