"""The GPUs of a world as text."""

from __future__ import annotations

import _ctypes
import ctypes
from types import SimpleNamespace

import pytest

from workbench.gpu import devices
from workbench.gpu.devices import is_gpu_aware, reported_support


def rank(number, *uuids, host="n1", aware=True, name="A100"):
    gpus = [{"uuid": uuid, "name": name, "memory": 1} for uuid in uuids]
    return {"rank": number, "host": host, "gpus": gpus, "gpu_aware": aware}


def test_ranks_without_gpus_have_no_words():
    assert devices.describe_gpus([rank(0), {"rank": 1, "host": "n1"}]) == ""


def test_ranks_with_gpus_of_their_own_share_none():
    text = devices.describe_gpus([rank(0, "a"), rank(1, "b", name="H100")])

    assert text == "2 GPUs (1 A100, 1 H100); MPI can send from their memory"


def test_ranks_that_share_are_named_by_node():
    ranks = [rank(0, "a", "b"), rank(1, "a", "b"), rank(2, "c", host="n2"), rank(3, "c", host="n2"), rank(4)]

    assert devices.describe_gpus(ranks) == (
        "3 GPUs (A100); ranks 0, 1 share 2 GPUs on n1; ranks 2, 3 share c on n2; MPI can send from their memory"
    )


def test_one_rank_that_cannot_send_is_enough():
    ranks = [rank(0, "a"), rank(1, "b", aware=None), rank(2, "c", aware=False)]

    assert devices.describe_gpus(ranks).endswith("MPI cannot send from their memory, so copy to the host first")
    assert devices.describe_gpus(ranks[:2]).endswith("is not known")


@pytest.mark.parametrize(
    ("answers", "environment", "aware"),
    [
        ({"MPIX_Query_cuda_support": 1}, {}, True),
        ({"MPIX_Query_cuda_support": 0, "MPIX_Query_rocm_support": 1}, {}, True),
        ({"MPIX_Query_cuda_support": 0}, {}, False),
        ({}, {}, None),
        ({}, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
        ({"MPIX_Query_cuda_support": 1}, {"MPICH_GPU_SUPPORT_ENABLED": "0"}, False),
    ],
)
def test_the_library_reports_whether_it_can_send(answers, environment, aware):
    library = SimpleNamespace(**{name: lambda answer=answer: answer for name, answer in answers.items()})

    assert reported_support(library, environment) is aware


@pytest.mark.parametrize("kind", range(3))
def test_mpich_is_asked_by_the_function_that_every_version_answers(kind):
    def asserts():
        raise AssertionError("MPICH 3.4 ends the process in its other functions")

    def query(asked, answer):
        ctypes.cast(answer, ctypes.POINTER(ctypes.c_int))[0] = int(asked == kind)
        return 0

    names = ("MPIX_Query_cuda_support", "MPIX_Query_ze_support", "MPIX_Query_hip_support")
    library = SimpleNamespace(MPIX_GPU_query_support=query, **dict.fromkeys(names, asserts))

    assert reported_support(library, {}) is True
    del library.MPIX_Query_ze_support, library.MPIX_Query_hip_support  # MPICH 3.4 has kind 0 only
    assert reported_support(library, {}) is (kind == 0)


@pytest.mark.parametrize(
    ("kinds", "environment", "aware"),
    [
        ("system,mpi,cuda:device", {}, True),
        ("system,mpi", {}, False),
        ("system,mpi", {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
        (None, {}, None),
    ],
)
def test_the_key_of_mpi_4_1_and_then_the_library_report_it(kinds, environment, aware):
    info = SimpleNamespace(Get={"mpi_memory_alloc_kinds": kinds}.get, Free=lambda: None)
    # A library without functions for GPUs.
    mpi = SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_info=lambda: info), __file__=_ctypes.__file__)

    assert is_gpu_aware(mpi, environment) is aware
