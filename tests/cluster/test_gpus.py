"""GPUs of the ranks of one host; the host needs none, because the variables of the ranks are enough."""

from __future__ import annotations

import os

import pytest
from distributed import Client

from workbench import MPICluster
from workbench.errors import InvalidRequest


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
        cluster = MPICluster(2, gpus_per_rank=1, quiet=True)
    with cluster:
        yield cluster


def visible():
    return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.mpi_flavour
def test_each_rank_has_its_share_of_the_gpus_of_the_host(cluster):
    with Client(cluster) as client:
        assert sorted(client.run(visible).values()) == ["2", "5"]


def test_ranks_of_a_second_world_would_share_the_gpus_and_are_refused(cluster):
    with pytest.raises(InvalidRequest, match="scale is not possible with --gpus-per-rank on this host"):
        cluster.scale(3)
    assert len(cluster.ranks) == 2
