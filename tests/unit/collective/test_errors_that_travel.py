"""Errors of a rank on their way to the notebook."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

from workbench.collective import serialize
from workbench.errors import CollectiveFailed

NOTE = "raised on rank 2"


@dataclasses.dataclass
class Diverged(Exception):
    """An error that is compared by its array, and so has no truth value."""

    residuals: np.ndarray


def packed(error):
    try:
        raise error  # noqa: TRY301
    except BaseException as caught:  # noqa: BLE001  (as on a rank)
        return serialize.pack_error(caught)


@pytest.mark.parametrize("given", [np.ones(1_000_000), "y" * 5_000_000], ids=["array", "words"])
def test_one_that_is_too_large_travels_in_words_and_not_in_too_many(given):
    told = packed(ValueError(given))
    assert len(pickle.dumps(told)) < 100_000
    error = serialize.unpack_error(told, NOTE)
    assert isinstance(error, CollectiveFailed)
    assert str(error).startswith("ValueError: ")
    assert str(error).endswith(NOTE)


def test_one_whose_class_compares_arrays_arrives_with_its_cause():
    error = Diverged(np.ones(3))
    error.__cause__ = Diverged(np.zeros(3))
    assert isinstance(serialize.unpack_error(packed(error), NOTE).__cause__, Diverged)


def test_one_that_has_no_words_is_told_all_the_same():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    assert packed(Mute())["words"] == "Mute, whose text cannot be formatted"


def test_one_of_mpi_does_not_load_mpi_where_it_is_read():
    raised = "from mpi4py import MPI; from workbench.collective import serialize; import pickle, sys\n"
    raised += "try: MPI.COMM_SELF.Send(b'', 99)\n"
    raised += "except MPI.Exception as error: sys.stdout.buffer.write(pickle.dumps(serialize.pack_error(error)))"
    told = subprocess.run([sys.executable, "-c", raised], capture_output=True, check=True).stdout
    read = "from workbench.collective import serialize; import pickle, sys\n"
    read += f"error = serialize.unpack_error(pickle.load(sys.stdin.buffer), {NOTE!r})\n"
    read += "assert 'mpi4py.MPI' not in sys.modules; print(type(error).__name__, error)"
    shown = subprocess.run([sys.executable, "-c", read], input=told, capture_output=True, check=True).stdout.decode()
    assert shown.startswith("CollectiveFailed Exception: MPI_ERR_RANK")
    assert NOTE in shown


def test_one_that_mpi_raises_after_the_end_of_a_process_is_marked():
    program = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from workbench.collective import serialize

for number in MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_OTHER:
    try:
        try:
            raise MPI.Exception(number)
        except MPI.Exception as error:
            raise RuntimeError("a collective has failed") from error
    except RuntimeError as error:
        assert serialize.pack_error(error)["process_failed"] == (number not in {MPI.ERR_OTHER, MPI.ERR_UNKNOWN})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert not packed(ValueError("no"))["process_failed"]
