"""The GPUs that each rank of a node may use, as variables of its process; pure functions, apart from `installed`."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from workbench.errors import LaunchError
from workbench.hints import Option
from workbench.text import count

CUDA = "CUDA_VISIBLE_DEVICES"
"""The variable with the GPUs that CUDA uses in a process."""
# Slurm sets all of these for the GPUs of a job or a step: for CUDA, ROCm, Level Zero and OpenCL.
_VARIABLES = (CUDA, "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL")
# The position of a rank among the ranks of its node: from Open MPI, MPICH and Intel MPI, MVAPICH, MPT; then from PALS,
# Flux, LSF, a PMI, and Slurm, which may have started a daemon of the former.
_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPT_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_LOCAL_RANK",
    "PMI_LOCAL_RANK",
    (_OF_SRUN := "SLURM_LOCALID"),
)
# A scheduler that has no files of the devices sets this in place of their numbers.
_NONE = "NoDevFiles"


def installed(folder: Path = Path("/dev")) -> list[str]:
    """Return the numbers that CUDA gives the NVIDIA GPUs of this host, from the files of the devices.

    Notes
    -----
    The driver is not loaded: the launcher of a cluster, and a rank before CUDA, must not start it. A container with
    some GPUs of a host has their files, with any numbers; CUDA numbers these GPUs from 0.
    """
    files = [path for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(files))]


def of_node(environment: Mapping[str, str], numbers: Iterable[str] = ()) -> dict[str, list[str]]:
    """Return the GPUs that a process may use, by the variables that name them.

    Parameters
    ----------
    environment
        The variables of the process. Slurm, and OpenPBS with its hook for control groups, set `CUDA`.
    numbers
        The GPUs of the host, for a process without these variables.
    """
    devices = {name: _listed(environment[name]) for name in _VARIABLES if name in environment}
    return devices or {CUDA: list(numbers)}


def of_rank(environment: Mapping[str, str], per_rank: int, numbers: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that give a rank its share of the GPUs of its node.

    Parameters
    ----------
    environment
        The variables of the rank, from its launcher.
    per_rank
        Number of GPUs per rank.
    numbers
        See `of_node`.

    Raises
    ------
    LaunchError
        If the node has not enough GPUs.

    Examples
    --------
    >>> of_rank({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 2)
    {'CUDA_VISIBLE_DEVICES': '2,3'}

    With ``--gpus-per-task``, ``srun`` itself has given each of its tasks a share:

    >>> of_rank({"CUDA_VISIBLE_DEVICES": "1", "SLURM_LOCALID": "1", "SLURM_GPUS_PER_TASK": "1"}, 1)
    {'CUDA_VISIBLE_DEVICES': '1'}
    """
    given = next((name for name in _LOCAL_RANKS if name in environment), None)
    # With --gpus-per-task; in an allocation of GPUs without it all tasks of a node see the same.
    by_srun = given in (None, _OF_SRUN) and not {"SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"}.isdisjoint(environment)
    position = int(environment[given]) if given else 0
    shares = {}
    for name, devices in of_node(environment, numbers).items():
        is_share = by_srun and len(devices) == per_rank
        share = devices if is_share else devices[position * per_rank : (position + 1) * per_rank]
        if len(share) < per_rank:
            raise LaunchError(
                f"rank {position} of the node {socket.gethostname()} needs {count(per_rank, 'GPU')} in addition to "
                f"those of lower ranks, and the node has {count(len(devices), 'GPU')} for this job ({name}).",
                hint=(
                    "Start fewer ranks per node, with ",
                    Option("nodes"),
                    " and ",
                    Option("ranks_per_node"),
                    ", or omit ",
                    Option("gpus_per_rank"),
                    ": then all ranks of a node share its GPUs.",
                ),
            )
        shares[name] = ",".join(share)
    return shares


def check(environment: Mapping[str, str], node_ranks: int) -> None:
    """Check that `of_rank` has not given all ranks of a node the same GPUs for want of a position.

    Parameters
    ----------
    environment
        See `of_rank`.
    node_ranks
        Number of ranks on the node.

    Raises
    ------
    LaunchError
        If it has.
    """
    if node_ranks > 1 and environment.keys().isdisjoint(_LOCAL_RANKS):
        raise LaunchError(
            f"the GPUs of {socket.gethostname()} cannot be divided between its {node_ranks} ranks: the launcher of the "
            f"ranks sets none of the variables with the position of a rank on its node ({', '.join(_LOCAL_RANKS)}).",
            option="gpus_per_rank",
            hint=(
                "Omit ",
                Option("gpus_per_rank"),
                " and choose the GPUs in the ranks, or start one rank per node with ",
                Option("ranks_per_node"),
                " 1.",
            ),
        )


def _listed(value: str) -> list[str]:
    return [device for each in value.split(",") if (device := each.strip()) and device != _NONE]
