"""The command line that starts an MPI world on one host, per flavor of MPI; pure functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.launch.mpi_library import MPI

OPENMPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Variables without which Open MPI does not run as root."""

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True)
class Geometry:
    """The ranks of a world on one host, and their resources."""

    ranks: int
    """Size of the world."""
    threads: int
    """Threads per rank."""
    cores: int
    """Cores that the world may use on its node."""
    root: bool = False
    """Whether the user is root, for whom Open MPI needs `OPENMPI_AS_ROOT`."""
    shared_memory: str | None = None
    """Folder for segments of shared memory, for MPIs with this option; None: the MPI's own choice."""

    @classmethod
    def here(cls, ranks: int, threads: int, shared_memory: Path | None = None) -> Geometry:
        """Return the geometry of a world on this host."""
        return cls(ranks, threads, available_cores(), os.geteuid() == 0, str(shared_memory) if shared_memory else None)

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more ranks than cores, so that a waiting rank has to yield its core."""
        return self.ranks > self.cores


@dataclass(frozen=True)
class WorldCommand:
    """A command line and the variables it needs."""

    argv: tuple[str, ...]
    """The command line."""
    environment: dict[str, str]
    """Variables to set in any case."""
    defaults: dict[str, str]
    """Variables to set unless the user has set them."""
    guard: str | None = None
    """Argument `hosts` of the `workbench.host.guard.Guard` that protects the program; None: no guard."""

    def variables(self, environment: dict[str, str]) -> dict[str, str]:
        """Return `environment` with the variables of the command added."""
        return {**self.defaults, **environment, **self.environment}


def available_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and the CPU time of its control group."""
    from dask.system import cpu_count

    return cpu_count()


def has_ulfm(mpi: MPI) -> bool:
    """Return whether the ranks of this MPI can continue when one of them dies."""
    return mpi.is_openmpi_5 and mpi.ulfm


def world_command(mpi: MPI, geometry: Geometry, command: Sequence[str], extra: Sequence[str] = ()) -> WorldCommand:
    """Return the command line that runs `command` on every rank of a new world on this host.

    Parameters
    ----------
    mpi
        The MPI whose ``mpiexec`` is used.
    geometry
        Number of ranks and their resources.
    command
        The command line of a rank.
    extra
        More arguments for ``mpiexec``.

    Notes
    -----
    Ranks are not bound to cores: on a host that other clusters and programs share, all worlds would be bound to the
    same first cores.
    """
    build = {"openmpi": _openmpi, "mpich": _mpich, "intelmpi": _intelmpi}[mpi.flavor]
    options, environment, defaults = build(mpi, geometry)
    argv = (mpi.mpiexec, *options, *extra, *command)
    return WorldCommand(argv, environment | thread_variables(geometry.threads), defaults)


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that set the number of threads in numerical libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


_Options = tuple[list[str], dict[str, str], dict[str, str]]


def _openmpi(mpi: MPI, geometry: Geometry) -> _Options:
    # Not bound to cores, because the ranks of several clusters would be bound to the same ones.
    options = ["-n", str(geometry.ranks), "--bind-to", "none"]
    environment: dict[str, str] = {}
    # On one host shared memory is enough; it opens no port and skips the search for networks at the start.
    shared_memory = "sm" if mpi.is_openmpi_5 else "vader"
    defaults = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": f"self,{shared_memory}"}
    if has_ulfm(mpi):
        more, environment = ulfm()
        options += more
    if geometry.oversubscribed:
        options += ["--map-by", ":oversubscribe"] if mpi.is_openmpi_5 else ["--oversubscribe"]
        defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if geometry.shared_memory:
        # The head removes the files of killed ranks and daemons from this folder.
        environment[f"OMPI_MCA_btl_{shared_memory}_backing_directory"] = geometry.shared_memory
        session = "PRTE_MCA_prte_tmpdir_base" if mpi.is_openmpi_5 else "OMPI_MCA_orte_tmpdir_base"
        environment[session] = geometry.shared_memory
    if geometry.root:
        environment |= OPENMPI_AS_ROOT
    return options, environment, defaults


def ulfm() -> tuple[list[str], dict[str, str]]:
    """Return the options and variables with which Open MPI's ranks continue when one of them dies."""
    # The option covers a rank that is killed by a signal, the variable a rank that exits with a code.
    return ["--with-ft", "ulfm"], {"PRTE_MCA_state_base_error_non_zero_exit": "0"}


def _mpich(mpi: MPI, geometry: Geometry) -> _Options:
    # On one host shared memory is enough, and ranks have no TCP port, which would accept every user. An older UCX may
    # not know how to exclude a transport.
    defaults = {"UCX_TLS": "^tcp"} if mpi.version >= (4, 1) else {}
    # Without this option Hydra uses the hosts of an enclosing job.
    return ["-launcher", "fork", "-n", str(geometry.ranks)], {}, defaults


def _intelmpi(_: MPI, geometry: Geometry) -> _Options:
    options = ["-launcher", "fork", "-n", str(geometry.ranks)]
    defaults = {"I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"}
    if geometry.oversubscribed:
        defaults["I_MPI_WAIT_MODE"] = "1"
    return options, {}, defaults
