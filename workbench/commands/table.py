"""The table of subcommands, for parser, help and completion, and for all places that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench import hints
from workbench.commands import actions, entry_points
from workbench.commands import format as shown
from workbench.commands.checkpoints import CHECKPOINT, CHECKPOINTS
from workbench.commands.subcommand import OUTPUT, SUBCOMMAND_GROUPS, Answer, Argument, Place, Subcommand, grouped
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.errors import ClusterNotFound, InvalidRequest, WorkbenchError
from workbench.hints import NOTEBOOK, TERMINAL, Command
from workbench.launch.jobqueue import presets
from workbench.launch.options import options

if TYPE_CHECKING:
    from workbench.cluster import MPICluster
    from workbench.commands.actions import Listing, Status, Stopped
    from workbench.commands.subcommand import CheckResult
    from workbench.metrics.profile_frame import ProfileFrame

ASK = "--"
"""What stands behind ``workbench completion`` where a script of a shell asks for words.

The scripts ask the command itself, so that they have what the table of subcommands has.
"""

SCRIPTS = {
    "bash": """\
_workbench() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _workbench workbench mpi-workbench
""",
    "zsh": """\
#compdef workbench mpi-workbench
_workbench() {
    local -a found
    found=("${(@f)$("${words[1]}" completion -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -- ${found:#}
}
compdef _workbench workbench mpi-workbench
""",
    "fish": """\
function __workbench
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion -- $words[2..-1] 2>/dev/null
end
complete -c workbench -a '(__workbench)'
complete -c mpi-workbench -a '(__workbench)'
""",
}
"""Scripts by their shells."""


def script(shell: str) -> str:
    """Return the script of a shell."""
    if shell not in SCRIPTS:
        raise InvalidRequest(option="shell", given=shell, allowed=tuple(SCRIPTS))
    return SCRIPTS[shell].rstrip("\n")


# -- arguments ---------------------------------------------------------------------------------------------


def _tables() -> list[str]:
    from workbench.metrics.tables import TABLES

    return list(TABLES)


def _interfaces() -> list[str]:
    import psutil

    return list(psutil.net_if_addrs())


# Options whose values only this host can list.
_FOUND_HERE: dict[str, Callable[[], Iterable[str]]] = {"preset": presets, "interface": _interfaces}


OPTIONS = {option.name: Argument.of(option, _FOUND_HERE.get(option.name)) for option in options()}
"""The options of a cluster by their names in Python."""
NAME = Argument("name", "name of the cluster; default: the one in use, or the only one", "NAME", registry.names)

# -- functions of subcommands ------------------------------------------------------------------------------------


def _start(at: Place, **typed: Any) -> Answer | None:
    started = actions.start(quiet=at.json, **typed)
    return _text("script")(started, at.name) if isinstance(started, str) else at.use(started)


def _stop(at: Place, name: str | None, *, all: bool) -> Stopped:  # noqa: A002  (as the option is called)
    bound = at.record
    try:
        targets = actions.targets(name, everything=all, bound=bound)
    except ClusterNotFound:
        if name is None:
            at.release()
        raise
    if bound is not None and bound.id in [record.id for record in targets.records]:
        at.release()
    return actions.stop(targets)


def _doctor(at: Place, name: str | None, mpi: str | None) -> list[CheckResult]:
    from workbench.commands.doctor import examine

    findings = []
    for finding in examine(name, mpi=mpi or "auto"):
        findings.append(finding)
        if not at.json:
            at.show(Answer(shown.finding_text(finding, at.name)))
    return findings


def _script(at: Place, name: str | None) -> str:
    return ClusterFolder.of(at.choose(name)).script()


# -- answers -----------------------------------------------------------------------------------------------


def _text(key: str) -> Callable[[str, str], Answer]:
    """Return a function that makes the answer of a text, with a key for programs."""
    return lambda text, _: Answer(text, {key: text})


def _status(status: Status, _: str) -> Answer:
    return Answer(shown.status_text(status), asdict(status), shown.status_html(status))


def _size(status: Status, _: str) -> Answer:
    return Answer(shown.status_line(status), asdict(status))


def detached(cluster: MPICluster) -> Answer:
    """Disconnect from a cluster that was started in a terminal, and return how to reach it."""
    status = actions.Status.of(ClusterJob(cluster.record))
    cluster.detach()
    text = (
        f"{shown.status_line(status)}; it continues without this terminal.\n"
        f"in a notebook: {Command('attach', status.name).at(NOTEBOOK)}\n"
        f"in Python:     workbench.MPICluster.attach({status.name!r})\n"
        f"to stop it:    {TERMINAL} stop {status.name}"
    )
    return Answer(text, asdict(status))


def _listing(listing: Listing, place: str) -> Answer:
    return Answer(shown.listing_text(listing, place), asdict(listing), shown.listing_html(listing))


def _places(result: tuple[dict[int, Any], bool], _: str) -> Answer:
    places, stacks = result
    return Answer(shown.where_text(places, stacks=stacks), {"ranks": places})


def _profile(frame: ProfileFrame, _: str) -> Answer:
    value = {"ranks": frame.to_dict("records"), "operations": frame.operations.to_dict("records")}
    return Answer(str(frame), value, rich=frame)


def _stopped(stopped: Stopped, place: str) -> Answer:
    failure = shown.failed_text(stopped, place) if stopped.failed else None
    return Answer(shown.stopped_text(stopped), asdict(stopped), failure=failure)


def _findings(findings: list[CheckResult], place: str) -> Answer:
    plain = [asdict(finding) | {"remedy": hints.words(finding.remedy, place)} for finding in findings]
    failure = "" if any(finding.verdict == "failed" for finding in findings) else None
    return Answer(shown.findings_summary(findings), {"findings": plain}, failure=failure)


# -- the table ---------------------------------------------------------------------------------------------

SUBCOMMANDS = (
    Subcommand(
        "start",
        "start a cluster of N ranks",
        "start and stop",
        _start,
        arguments=(*OPTIONS.values(), Argument("--dry-run", "print what would run, and start nothing", group=OUTPUT)),
    ),
    Subcommand(
        "status",
        "show the state of a cluster",
        "look at a cluster",
        lambda at, name: actions.status(at.choose(name), at.cluster),
        _status,
        (NAME,),
    ),
    Subcommand(
        "list",
        "list all your clusters",
        "look at a cluster",
        lambda _, all: actions.listing(everything=all),  # noqa: A006  (as the option is called)
        _listing,
        (Argument("--all", "also those that have ended in the last days, with time, reason and folder of the logs"),),
    ),
    Subcommand(
        "attach",
        "connect to a running cluster",
        "start and stop",
        lambda at, name, ssh_tunnel: at.use(actions.attach(name, ssh_tunnel)),
        arguments=(
            Argument("name", "name of the cluster", "NAME", registry.names, required=True),
            OPTIONS["ssh_tunnel"],
        ),
        places=(NOTEBOOK,),
    ),
    Subcommand(
        "logs",
        "print the logs of a cluster, also after it has stopped",
        "look at a cluster",
        lambda at, name, rank: actions.logs(name, rank, at.record),
        _text("logs"),
        (NAME, Argument("--rank", "only the log of one rank", "RANK")),
    ),
    Subcommand(
        "scale",
        "scale to N ranks, which get the results of the present ranks",
        "start and stop",
        lambda at, ranks, name: actions.scale(at.choose(name), ranks, at.cluster),
        _size,
        (Argument("ranks", "number of ranks", "N", required=True), NAME),
        progress_label="scaling",
    ),
    Subcommand(
        "restart",
        "restart all ranks; results in their memory are lost",
        "start and stop",
        lambda at, name: actions.restart(at.choose(name), at.cluster),
        _size,
        (NAME,),
        progress_label="restarting",
    ),
    Subcommand(
        "where",
        "show where each rank is in a running SPMD call, cell or task",
        "look at a cluster",
        lambda at, name, stacks: (actions.where(at.choose(name), at.cluster), stacks),
        _places,
        (NAME, Argument("--stacks", "also print the stack of each rank")),
    ),
    Subcommand(
        "metrics",
        "print measurements as OpenMetrics or as a table, or write them to a file",
        "look at a cluster",
        lambda at, name, table, out: actions.metrics(at.choose(name), table, out, at.cluster),
        _text("metrics"),
        (
            NAME,
            Argument("--table", "this table, as CSV; default: OpenMetrics of the last half second", "TABLE", _tables),
            Argument("--out", "file to write; its ending selects CSV or Parquet for a table", "FILE"),
        ),
    ),
    Subcommand(
        "profile",
        "show the time of each rank since its start: computing, MPI, the longest operations",
        "look at a cluster",
        lambda at, name: actions.profile(at.choose(name), at.cluster),
        _profile,
        (NAME,),
    ),
    CHECKPOINT,
    CHECKPOINTS,
    Subcommand(
        "stop",
        "stop a cluster",
        "start and stop",
        _stop,
        _stopped,
        (NAME, Argument("--all", "stop all your clusters")),
        progress_label="stopping",
    ),
    Subcommand(
        "script",
        "print the script of a cluster's job",
        "look at a cluster",
        _script,
        _text("script"),
        (NAME,),
    ),
    Subcommand(
        "doctor",
        "check this installation, and a running cluster if it is named",
        "set up",
        _doctor,
        _findings,
        (Argument("name", "name of a running cluster to check too", "NAME", registry.names), OPTIONS["mpi"]),
    ),
    Subcommand(
        "completion",
        "print a script with which a shell completes this command",
        "set up",
        lambda _, shell: script(shell),
        _text("completion"),
        (Argument("shell", "name of the shell: bash, zsh or fish", "SHELL", lambda: SCRIPTS, required=True),),
        (TERMINAL,),
    ),
)


def find(name: str, place: str) -> Subcommand | None:
    """Return a subcommand of a place; None: the place has no such subcommand.

    Raises
    ------
    WorkbenchError
        If an entry point has the name, and cannot be loaded.
    """
    found = next((each for each in SUBCOMMANDS if each.name == name), None)
    if found is None:
        for _, found in entry_points.load(entry_points.SUBCOMMANDS, Subcommand, only=name):
            if isinstance(found, WorkbenchError):
                raise found
    return found if found is not None and place in found.places else None


def _of_all() -> tuple[list[Subcommand], list[WorkbenchError]]:
    """Return the subcommands of all distributions, and why others cannot be used."""
    names = [each.name for each in SUBCOMMANDS]
    loaded = [found for _, found in entry_points.load(entry_points.SUBCOMMANDS, Subcommand, taken=names)]
    errors = [found for found in loaded if isinstance(found, WorkbenchError)]
    return [*SUBCOMMANDS, *(found for found in loaded if isinstance(found, Subcommand))], errors


def subcommands(place: str) -> dict[str, Subcommand]:
    """Return the subcommands of a place by their names, also those of other distributions."""
    return {subcommand.name: subcommand for subcommand in _of_all()[0] if place in subcommand.places}


def overview(place: str) -> str:
    """Return a line of usage and a sentence for every subcommand, in groups, and why others cannot be used."""
    every, errors = _of_all()
    here = [subcommand for subcommand in every if place in subcommand.places]
    groups = [
        "\n".join([f"{group}:", *(f"  {subcommand.usage(place)}\n      {subcommand.help}" for subcommand in members)])
        for group, members in grouped(here, SUBCOMMAND_GROUPS)
    ]
    end = f"{place} SUBCOMMAND --help explains the options of a subcommand."
    return "\n\n".join([*groups, end, *(error.words(place) for error in errors)])
