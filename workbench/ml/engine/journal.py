"""The journal of a fit, with which a fit that was interrupted continues.

An algorithm learns of the data only from the answers of `Parts`. So it is a function of the sequence of these answers,
and a file of the answers is a checkpoint of any algorithm, also of a solver whose state cannot be read. A fit that
continues runs the algorithm from its beginning with the answers of the file, for which no part computes, and then with
answers of the parts. Parts that change during a fit write their state now and then: the fit continues from there.

::

    FOLDER/journal        records: the fit and its data, each answer, where the state of the parts is, the end
           state-41/0.npz the state of the part with the first row 0, after 41 answers

A state is whole when the journal has its record.
"""

from __future__ import annotations

import functools
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import scipy

from workbench.checkpoint import folder
from workbench.config import __version__
from workbench.errors import InvalidRequest
from workbench.host import files
from workbench.ml.engine.journaled_part import Column, PartMaker, StateFile
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.parts import ConnectedParts
from workbench.ml.engine.records import REMEDY, Record, RecordFile, encode, refused

# Names of records that are not answers, which have the names of methods.
_FIT, _STATE, _END = "the fit", "the state", "the end"
_STATES = re.compile(r"state-\d+")
_FORMAT = 1

EVERY = 60.0
"""Seconds between two states of the parts, by default."""

# Maximum number of characters of a value in a message.
_SHOWN = 60
# Settings that do not identify a fit: what ranks have memory for, and the seed, which an estimator may draw.
_NOT_COMPARED = {"limit", "seed"}


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit writes its journal.

    Parameters
    ----------
    folder
        The absolute path of a folder, on a file system that this process and all ranks share.
    every
        Seconds between two states of the parts.
    draws
        Whether the estimator draws a seed: a fit that continues has the seed of the journal.
    """

    folder: str
    every: float
    draws: bool

    def __post_init__(self) -> None:
        if not isinstance(self.every, int | float) or not self.every >= 0:
            raise InvalidRequest(option="every", given=self.every, allowed="a number of seconds, at least 0")


def journaled(task: Task, checkpoint: Checkpoint) -> Task:
    """Return the task with a journal, for any engine."""
    return replace(task, algorithm=_Algorithm(task, checkpoint), part=PartMaker(task.part))


class _Algorithm:
    """The algorithm of a task, with a journal."""

    def __init__(self, task: Task, checkpoint: Checkpoint) -> None:
        self._algorithm, self._estimator, self._keeps = task.algorithm, task.checks.estimator, bool(task.kept)
        self._checkpoint = checkpoint

    def __call__(self, parts: ConnectedParts, settings: Any) -> Any:
        described = parts.each("described")
        columns = functools.reduce(_joined, [each for _, each in described])
        seed = getattr(settings, "seed", None)
        fit = _identity(self._estimator, settings, columns) | {"seed": seed}
        has_state = any(has for has, _ in described)
        with Journal(Path(self._checkpoint.folder), fit, drawn=self._checkpoint.draws, has_state=has_state) as journal:
            if journal.seed != seed:
                settings = replace(settings, seed=journal.seed)
            answers = Answers(parts, journal, self._checkpoint.every, keeps=self._keeps)
            result = self._algorithm(answers, settings)
            answers.end()
        return result


def _joined(left: Mapping[str, Column], right: Mapping[str, Column]) -> dict[str, Column]:
    return {name: left[name].joined(right[name]) for name in left}


def _identity(estimator: str, settings: Any, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return what must not differ between a fit and the fit of a journal, by names for messages."""
    options = {"settings": settings}
    if is_dataclass(settings):
        options = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {
        "format": _FORMAT,
        "workbench": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "estimator": estimator,
        **{
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in options.items()
            if name not in _NOT_COMPARED
        },
        **{f"shape of {name}": f"{column.rows}{column.kind}" for name, column in columns.items()},
        **{f"checksum of {name}": f"{column.crc:08x}" for name, column in columns.items()},
    }


class Journal:
    """The folder of a fit: the known answers, and the last state of the parts.

    Parameters
    ----------
    root
        The folder, which is created if it is missing.
    fit
        What identifies the fit, by name.
    drawn
        Whether the seed of the journal replaces that of the fit.
    has_state
        Whether parts have a state, without which they cannot continue.

    Raises
    ------
    InvalidRequest
        If the folder has something else than the journal of this fit, or cannot be used.
    """

    def __init__(self, root: Path, fit: Mapping[str, Any], *, drawn: bool, has_state: bool) -> None:
        self.root, self.has_state = root, has_state
        self.state: tuple[int, list[StateFile]] | None = None
        """Number of answers before the state, and its files."""
        folder.open_root(root)
        with folder.worded(root, "open the journal"):
            if not (root / "journal").exists() and any(root.iterdir()):
                raise refused(root, "the folder has other files. Name a new folder.")
            self._file = RecordFile(root / "journal")
        try:
            with folder.worded(root, "read the journal"):
                self.answers = self._known(fit, drawn=drawn)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def _known(self, fit: Mapping[str, Any], *, drawn: bool) -> list[Record]:
        """Return the answers from which the fit continues, and remove later records."""
        records = self._file.records
        known = self._file.read(records[0]) if records else fit
        self._compare(fit, known, drawn=drawn)
        self.seed = known["seed"]
        if not records:
            self._file.keep([])
            self._file.append(_FIT, fit)
        self.complete = bool(records) and records[-1].name == _END
        last = max((place for place, record in enumerate(records) if record.name == _STATE), default=None)
        if last is not None:
            number, state = self._file.read(records[last])
            self.state = number, [StateFile(*file) for file in state]
        if records and not self.complete:
            kept = records if not self.has_state else records[: 1 if last is None else last + 1]
            self._file.keep(kept)
            records = kept
        self._remove_states()
        return [record for record in records[1:] if record.name not in {_STATE, _END}]

    def _compare(self, fit: Mapping[str, Any], known: Mapping[str, Any], *, drawn: bool) -> None:
        """Raise InvalidRequest if the journal is that of another fit."""
        names = [name for name in {**known, **fit} if not (drawn and name == "seed")]
        differences = [name for name in names if _content(known.get(name)) != _content(fit.get(name))]
        if "estimator" in differences:
            differences = ["estimator"]
        if differences:
            named = (f"{name} was {_short(known.get(name))} and is {_short(fit.get(name))}" for name in differences)
            message = f"the folder has the journal of another fit: {', '.join(named)}. "
            raise refused(self.root, message + REMEDY)

    def _remove_states(self) -> None:
        """Remove all states but the last one."""
        name = f"state-{self.state[0]}" if self.state else ""
        for path in self.root.iterdir():
            if _STATES.fullmatch(path.name) and path.name != name:
                shutil.rmtree(path, ignore_errors=True)

    def answer(self, number: int, method: str) -> Any:
        """Return a known answer; raise InvalidRequest if that is not an answer of this method."""
        if number >= len(self.answers) or (record := self.answers[number]).name != method:
            raise refused(self.root, f"answer {number} of the journal is not one of {method!r}. {REMEDY}")
        with folder.worded(self.root, "read the journal"):
            return self._file.read(record)

    def append(self, method: str, answer: Any) -> None:
        """Add an answer."""
        with folder.worded(self.root, "write the journal"):
            self._file.append(method, answer)

    def save(self, number: int, write: Callable[[str], list[StateFile | None]]) -> None:
        """Have all parts write their state after a number of answers, and remove the state before."""
        state = self.root / f"state-{number}"
        with folder.worded(self.root, "create the folder of a state"):
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir(mode=0o700)
        try:
            written = [file for file in write(str(state)) if file is not None]
        except BaseException:
            shutil.rmtree(state, ignore_errors=True)
            raise
        with folder.worded(self.root, "write the journal"):
            files.sync_folder(state)
            files.sync_folder(self.root)
            self._file.append(_STATE, (number, [tuple(file) for file in written]))
            self._file.sync()
            self.state = number, written
            self._remove_states()

    def sync(self) -> None:
        """Wait until the answers are on the disk."""
        with folder.worded(self.root, "write the journal"):
            self._file.sync()

    def end(self, *, keeps: bool) -> None:
        """Complete the journal; a fit that keeps no arrays on the ranks needs no state any more."""
        with folder.worded(self.root, "write the journal"):
            self._file.append(_END, None)
            self._file.sync()
            if not keeps:
                self.state = None
                self._remove_states()


def _content(value: Any) -> bytes:
    return b"".join(piece.tobytes() for piece in encode("", value))


def _short(value: Any) -> str:
    text = "an array" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class Answers:
    """Parts whose answers are in a journal: from there as far as they are known, else from the parts.

    Parameters
    ----------
    parts
        The parts, made by `PartMaker`.
    journal
        The journal.
    every
        Seconds between two states.
    keeps
        Whether the parts keep arrays after the fit, so that they need their last state.
    """

    def __init__(self, parts: ConnectedParts, journal: Journal, every: float, *, keeps: bool) -> None:
        self._parts, self._journal, self._every, self._keeps = parts, journal, every, keeps
        self.direct, self.report = parts.direct, parts.report
        self._number, self._saved_at, self._is_live = 0, time.monotonic(), False
        self._may_save = True

    def sum(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.sum`."""
        return self._answer(self._parts.sum, method, args)

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `workbench.ml.engine.parts.Parts.each`."""
        answers: list[Any] = self._answer(self._parts.each, method, args)
        # The next request may be about one of these parts, which other parts of a later division could not answer.
        self._may_save = False
        return answers

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.fold`."""
        return self._answer(functools.partial(self._parts.fold, join), method, args)

    def together(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.ConnectedParts.together`."""
        return self._answer(self._parts.together, method, args)

    def _answer(self, ask: Callable[..., Any], method: str, args: tuple[Any, ...]) -> Any:
        number, may_save = self._number, self._may_save
        self._number, self._may_save = number + 1, True
        if number < len(self._journal.answers) or self._journal.complete:
            return self._journal.answer(number, method)
        if not self._is_live:
            self._load()
        elif may_save and time.monotonic() - self._saved_at >= self._every:
            self._save(number)
        answer = ask(method, *args)
        self._journal.append(method, answer)
        return answer

    def _load(self) -> None:
        """Have the parts continue from the last state, if there is one and nothing was asked yet."""
        if self._journal.state and not self._is_live:
            number, state = self._journal.state
            self._parts.each("load_state", str(self._journal.root / f"state-{number}"), state)
        self._is_live = True

    def _save(self, number: int) -> None:
        if self._journal.has_state:
            self._journal.save(number, functools.partial(self._parts.each, "save_state"))
        else:
            self._journal.sync()
        self._saved_at = time.monotonic()

    def end(self) -> None:
        """Complete the journal after the last answer; the parts have their last state then, if they keep arrays."""
        if self._keeps:
            self._load()
        if self._journal.complete:
            return
        if self._keeps and self._journal.has_state and (not (last := self._journal.state) or last[0] < self._number):
            self._save(self._number)
        self._journal.end(keeps=self._keeps)
