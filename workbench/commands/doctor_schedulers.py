"""Checks of the batch schedulers, and of the environment of their jobs.

Outside of a job nothing is started; in a job ``srun`` starts ``true``, since only this shows whether ``srun`` works.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from workbench import config
from workbench.commands.subcommand import CheckResult, failure, skipped
from workbench.deploy.folder import clusters_folder
from workbench.errors import WorkbenchError
from workbench.launch.allocation import Allocation, current_allocation, scrub_rank
from workbench.launch.jobqueue import Site, presets, site
from workbench.launch.launchers import COMMANDS, TITLES, absence, answers, choose, installed, launcher
from workbench.launch.mpi_library import MPI, WorldCommand
from workbench.launch.multinode import NodePlacement, remote_shell, spread_command, srun_mpi_types
from workbench.launch.options import Resources

_ASK = {"slurm": "sinfo", "pbs": "qstat -B"}
# File systems that no other host can see, ...
_LOCAL = ("tmpfs", "ramfs", "devtmpfs", "overlay")
# ... and those that hosts share, as their names begin.
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "afs", "9p", "pvfs", "orangefs", "panfs", "fuse.")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108  (nothing is put there)
# Maximum names in a result.
_SOME = 3


def examine(found: MPI | None) -> Iterator[CheckResult]:
    """Check the batch schedulers of this host, and the job that this process is in.

    Parameters
    ----------
    found
        The MPI of this environment; None: there is none that works.
    """
    present = {name: answers(name) for name in COMMANDS if installed(name)}
    taken, around = "local", None
    try:
        taken = choose()
        yield schedulers(present, taken)
    except WorkbenchError as error:
        yield failure("schedulers", error)
    try:
        around = current_allocation()
        yield allocation(around, scrub_rank(os.environ)[1])
    except WorkbenchError as error:
        yield failure("allocation", error)
    ready = [name for name, good in present.items() if good]
    batch = around.scheduler if around else next((name for name in (taken, *ready) if name in TITLES), None)
    if batch is not None:
        yield from _world(found, batch, around)
        yield from _settings(batch, inside=around is not None)
        folder = clusters_folder()
        yield shared_folder(folder, file_system(folder, _mounts()), [*_TEMPORARY, tempfile.gettempdir()])
    yield tunnel(shutil.which("ssh"))


def schedulers(present: Mapping[str, bool], taken: str) -> CheckResult:
    """Check the schedulers.

    Parameters
    ----------
    present
        Whether each that is installed answers.
    taken
        The one that a start takes if none is named.
    """
    default = f"a start without --scheduler uses {taken}"
    if not present:
        detail = absence("pbs") if shutil.which(COMMANDS["pbs"]) else "no batch scheduler is on this host"
        return CheckResult("schedulers", "ok", f"{detail}; {default}")
    words = [f"{TITLES[name]} {'answers' if good else 'does not answer'}" for name, good in present.items()]
    detail = f"{', '.join(words)}; {default}"
    silent = [name for name, good in present.items() if not good]
    if not silent:
        return CheckResult("schedulers", "ok", detail)
    commands = " and ".join(f"`{_ASK[name]}`" for name in silent)
    return CheckResult("schedulers", "warning", detail, f"Run {commands} to see the reason.")


def allocation(around: Allocation | None, identity: Sequence[str]) -> CheckResult:
    """Report the enclosing job, and the variables that started processes do not inherit.

    Parameters
    ----------
    around
        The job; None: none.
    identity
        Names of the variables of an enclosing step or rank.
    """
    detail = "this process is not inside a job"
    if around is not None:
        detail = f"this process is inside {around.describe}; --scheduler here starts a cluster on its nodes"
    if identity:
        detail += f"; started processes do not get {_some(identity)}, which belong to an enclosing step or rank"
    return CheckResult("allocation", "ok", detail)


def pairing(found: MPI, named: Sequence[str], command: Sequence[str]) -> CheckResult:
    """Check which launcher Slurm and this MPI use.

    Parameters
    ----------
    found
        The MPI.
    named
        What ``srun --mpi=list`` names.
    command
        The command line that would start ranks on several nodes.
    """
    check, names = "ranks of a job", f"srun names {', '.join(named) or 'no interface'}"
    if Path(command[0]).name != "srun":
        return CheckResult(check, "ok", f"{found} is started by its own mpiexec; {names}")
    detail = f"{found} is started by srun {command[1]}; {names}"
    if "pmix" not in command[1]:
        return CheckResult(check, "ok", detail)
    remedy = (
        "Check that a cluster starts ten times in succession, and that libpmix.so, without a number, is on every node "
        "(Debian: libpmix-dev). If not, set workbench.mpi.launcher to mpiexec."
    )
    return CheckResult(
        check, "warning", f"{detail}; Open MPI 5 is known to crash occasionally when srun starts the ranks", remedy
    )


def launcher_of_job(line: WorldCommand) -> CheckResult:
    """Judge whether the launcher of ranks on several nodes, and its daemons, answer other users."""
    check = "launcher of a job"
    if Path(line.argv[0]).name == "srun":
        return CheckResult(check, "ok", "srun starts ranks on several nodes, and authenticates connections")
    if line.guard is not None:
        return CheckResult(
            check, "ok", "on several nodes no port of mpiexec and its daemons answers other users and hosts"
        )
    detail = "on several nodes every user who reaches the nodes can send commands to mpiexec and its daemons"
    remedy = "If other users can reach the nodes, start each world on one node. docs/security.md has the reasons."
    return CheckResult(check, "warning", detail, remedy)


def sections(read: Mapping[str, Site], files: Sequence[Path], notices: Sequence[str] = ()) -> CheckResult:
    """Report the settings of a site, and those without effect.

    Parameters
    ----------
    read
        The scheduler's own section and those of presets, by name.
    files
        Where they come from.
    notices
        What has no effect, in sentences.
    """
    where = ", ".join(map(str, files)) or "no file has settings of jobqueue"
    told = [where, *(_section(name, settings) for name, settings in read.items()), *dict.fromkeys(notices)]
    lost = [notice for notice in notices if not notice.startswith("not used: ")]
    remedy = "Correct these settings; docs/site-setup.md lists those that are read." if lost else ""
    return CheckResult("jobqueue.yaml", "warning" if lost else "ok", "; ".join(told), remedy)


def interface(named: Mapping[str, str | None], here: Collection[str], *, inside: bool) -> CheckResult:
    """Judge the network interface that head and ranks of a job are to bind.

    Parameters
    ----------
    named
        Interface by the setting that names it; the first that does holds.
    here
        Interfaces of this host.
    inside
        Whether this host is a node of a job.
    """
    check = "interface"
    setting, name = next(((key, value) for key, value in named.items() if value), ("", None))
    if name is None:
        return CheckResult(
            check,
            "ok",
            "no setting names an interface: head and ranks bind the interface to the other nodes of the job",
        )
    if name in here:
        return CheckResult(check, "ok", f"head and ranks of a job bind {name} ({setting})")
    detail = f"{setting} names {name}, which this {'node' if inside else 'host'} does not have"
    remedy = (
        f"Name an interface that every node has; `ip -brief address` lists them. This {'node' if inside else 'host'} "
        f"has {', '.join(sorted(here))}."
    )
    return CheckResult(check, "warning", detail, remedy)


def file_system(folder: Path, mounts: Iterable[tuple[str, str]]) -> str:
    """Return the kind of file system that a folder is on; empty if that is not known.

    Parameters
    ----------
    folder
        Its absolute path.
    mounts
        Folder and kind of each file system, in the order they were mounted.

    Examples
    --------
    >>> file_system(Path("/shared/me"), [("/", "ext4"), ("/shared", "nfs4"), ("/share", "xfs")])
    'nfs4'
    """
    above = [
        (len(PurePath(where).parts), number, kind)
        for number, (where, kind) in enumerate(mounts)
        if folder.is_relative_to(where)
    ]
    return max(above, default=(0, 0, ""))[-1]


def shared_folder(folder: Path, kind: str, temporary: Iterable[str]) -> CheckResult:
    """Judge whether nodes can see a folder.

    Parameters
    ----------
    folder
        Where the clusters' records are.
    kind
        Kind of its file system.
    temporary
        Folders that each host usually has for itself.
    """
    check, on = "records on nodes", f"on {kind}" if kind else "on a file system that is not known"
    if kind.startswith(_SHARED):
        return CheckResult(check, "ok", f"{folder} is {on}, which hosts can share")
    if kind in _LOCAL or any(folder.is_relative_to(above) for above in temporary):
        remedy = "Set JUPYTER_DATA_DIR to a folder that nodes share with this host, for example in your home."
        return CheckResult(check, "warning", f"{folder} is {on}, in a place that hosts do not share", remedy)
    return CheckResult(check, "ok", f"{folder} is {on}; nodes must have the folder at the same path")


def tunnel(ssh: str | None) -> CheckResult:
    """Check whether ``ssh`` is installed, which ``--ssh-tunnel`` needs."""
    detail = f"{ssh}, for --ssh-tunnel" if ssh else "ssh is not installed, so --ssh-tunnel cannot be used"
    return CheckResult("ssh", "ok", detail)


def _world(found: MPI | None, scheduler: str, around: Allocation | None) -> Iterator[CheckResult]:
    check = "ranks of a job"
    if found is None:
        yield skipped(check, "mpiexec")
        return
    job = around or Allocation(scheduler, "", ("node",), (1,))
    try:
        by = remote_shell(scheduler)
        guard = "hosts" if config.switch("mpi.guard") else None
        spread = NodePlacement(ranks=1, threads=1, around=job, counts=(1,), agent=by, guard=guard)
        line = spread_command(found, spread, ["true"])
    except WorkbenchError as error:
        yield failure(check, error)
        return
    if scheduler == "pbs":
        how = by or "what it chooses itself (TM, ssh)"
        yield CheckResult(check, "ok", f"{found} is started by its own mpiexec, which reaches nodes by {how}")
    else:
        yield pairing(found, srun_mpi_types(), line.argv)
    yield launcher_of_job(line)


def _settings(scheduler: str, *, inside: bool) -> Iterator[CheckResult]:
    import dask.config
    import psutil

    own = None
    try:
        read, notices, batch = {}, list[str](), launcher(scheduler)
        for preset in (None, *presets()):
            # What a start would do with it finds more than reading it.
            settled = batch.resolve(Resources(preset=preset), ranks=1, threads=1, memory=None)
            read[preset or scheduler] = site(scheduler, preset)
            notices += batch.notices(settled, None)
        own = read[scheduler].interface
        files = dask.config.collect_yaml(dask.config.paths, return_paths=True)
        yield sections(read, [path for path, content in files if "jobqueue" in content], notices)
    except WorkbenchError as error:
        yield failure("jobqueue.yaml", error)
    named = {
        "the setting workbench.interface": config.get("interface"),
        f"the setting jobqueue.{scheduler}.interface": own,
    }
    yield interface(named, psutil.net_if_addrs(), inside=inside)


def _section(name: str, settings: Site) -> str:
    values = {key: getattr(settings, key) for key in ("queue", "account", "walltime", "interface")}
    return f"{name}: {', '.join(f'{key} {value}' for key, value in values.items() if value) or 'sets nothing'}"


def _mounts() -> list[tuple[str, str]]:
    import psutil

    return [(mount.mountpoint, mount.fstype) for mount in psutil.disk_partitions(all=True)]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SOME]) + (f" and {len(names) - _SOME} more" if len(names) > _SOME else "")
