"""Which GPUs a rank gets from what its scheduler and its launcher have set."""

from __future__ import annotations

import pytest
from support.raised import raises

from workbench.errors import LaunchError
from workbench.gpu.visible import check, installed, of_node, of_rank


def openmpi(rank):
    return {"OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("launcher", "rank"),
    [
        (openmpi(0), 0),
        (openmpi(1), 1),
        ({"MPI_LOCALRANKID": "1"}, 1),
        ({"SLURM_LOCALID": "1"}, 1),
        ({"PALS_LOCAL_RANKID": "1"}, 1),
        ({"FLUX_TASK_LOCAL_ID": "1"}, 1),
        ({"MV2_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),
        ({"PMI_LOCAL_RANK": "1"}, 1),
        ({"JSM_NAMESPACE_LOCAL_RANK": "1"}, 1),
        ({"MPT_LOCAL_RANK": "1"}, 1),
        ({}, 0),
    ],
)
def test_each_rank_of_a_node_gets_its_share_of_what_slurm_gave_the_job(launcher, rank):
    of_job = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "ROCR_VISIBLE_DEVICES": "4,5,6,7"}

    shares = of_rank({**of_job, **launcher}, 2)

    share = ("4,5", "6,7")[rank]
    assert shares == {"CUDA_VISIBLE_DEVICES": share, "ROCR_VISIBLE_DEVICES": share}


def test_ranks_of_a_node_without_positions_are_an_error_since_all_would_get_the_first_gpu():
    check({"PALS_LOCAL_RANKID": "0"}, 4)
    check({}, 1)
    with raises(LaunchError, option="gpus_per_rank"):
        check({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4)


def test_a_share_that_srun_gave_to_its_task_stays_and_mpiexec_gives_none():
    bound = {"CUDA_VISIBLE_DEVICES": "GPU-b", "SLURM_LOCALID": "1"}

    assert of_rank({**bound, "SLURM_GPUS_PER_TASK": "1"}, 1) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    with pytest.raises(LaunchError):
        of_rank(bound, 1)  # in an allocation without --gpus-per-task rank 0 has this GPU
    with pytest.raises(LaunchError):
        of_rank({**bound, **openmpi(1)}, 1)


def test_pbs_names_them_in_a_variable():
    rank = {"PBS_JOBID": "7", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}

    assert of_rank({**rank, "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 1) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}


def test_without_a_scheduler_the_gpus_of_the_host_are_divided(tmp_path):
    for name in ("nvidia10", "nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()

    # In a container with some GPUs of a host CUDA numbers these from 0.
    assert installed(tmp_path) == ["0", "1", "2"]
    assert of_rank({"MPI_LOCALRANKID": "2"}, 1, installed(tmp_path)) == {"CUDA_VISIBLE_DEVICES": "2"}


@pytest.mark.parametrize("hidden", ["", "NoDevFiles", " "])
def test_a_user_who_hides_all_gpus_has_none(hidden):
    assert of_node({"CUDA_VISIBLE_DEVICES": hidden}, ["0", "1"]) == {"CUDA_VISIBLE_DEVICES": []}
    with pytest.raises(LaunchError):
        of_rank({"CUDA_VISIBLE_DEVICES": hidden}, 1, ["0", "1"])
