"""GPUs of the ranks of one host; the host needs none: the ranks have a fake of nvidia-ml-py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from distributed import Client
from support.processes import until
from support.raised import raises

from workbench import MPICluster
from workbench.commands import actions
from workbench.commands.format import status_text
from workbench.errors import InvalidRequest

FAKE = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from support.fake_nvml import fake_nvml
sys.modules["pynvml"] = fake_nvml("GPU-a", "GPU-b", "GPU-c", load=40, used=2**30, total=2**34)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    (folder / "pynvml.py").write_text(FAKE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "0,2,1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        cluster = MPICluster(2, gpus_per_rank=1, quiet=True)
    with cluster:
        yield cluster


def visible():
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]


@pytest.mark.mpi_flavor
def test_each_rank_has_its_share_of_the_gpus_of_the_host(cluster):
    with Client(cluster) as client:
        assert sorted(client.run(visible).values()) == [("0", "PCI_BUS_ID"), ("2", "PCI_BUS_ID")]
    assert [[gpu["uuid"] for gpu in rank["gpus"]] for rank in cluster.ranks] == [["GPU-a"], ["GPU-c"]]


@pytest.mark.mpi_flavor
def test_the_status_has_the_gpus_and_what_mpi_can_do_with_them(cluster):
    # The wheels of both MPIs are built without CUDA, and each reports that or nothing.
    text = status_text(actions.status(cluster.refresh(), cluster))

    assert "GPUs        2 GPUs (NVIDIA H100); " in text
    assert "MPI cannot send from their memory" in text or "is not known" in text


def test_the_metrics_have_load_and_memory_of_the_gpus_of_each_rank(cluster):
    def measured():
        last = cluster.metrics("ranks").groupby("rank").last()
        return last[["gpu", "gpu_memory", "gpu_memory_total"]].to_numpy().tolist() == [[40.0, 2**30, 2**34]] * 2

    until("both ranks have been sampled", measured)


def test_more_ranks_would_share_the_gpus_and_are_refused(cluster):
    with raises(InvalidRequest, option="gpus_per_rank", given=1, allowed=()):
        cluster.scale(3)
    assert len(cluster.ranks) == 2
