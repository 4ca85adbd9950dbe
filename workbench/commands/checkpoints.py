"""The subcommands for checkpoints: save variables of a notebook, list and verify the versions of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands import actions
from workbench.commands.subcommand import Answer, Argument, Place, Subcommand
from workbench.deploy.display import table
from workbench.errors import InvalidRequest, did_you_mean
from workbench.hints import NOTEBOOK
from workbench.launch.options import count
from workbench.text import clock, printable, table_lines

if TYPE_CHECKING:
    from workbench.checkpoint.folder import Version

_TITLES = ("version", "saved", "cluster", "ranks", "size", "content")


def _checkpoint(at: Place, path: str, names: str, keep: str | None) -> Answer:
    variables = {name: value for name, value in at.variables().items() if not name.startswith("_")}
    for name in names.split(","):
        if name not in variables:
            message = f"checkpoint: the notebook has no variable {name!r}: {did_you_mean(name, variables)}"
            raise InvalidRequest(message, option="names", given=name)
    named = {name: variables[name] for name in names.split(",")}
    with actions.connected(at.choose(None), at.cluster) as cluster:
        version = cluster.checkpoint(path, keep=2 if keep is None else count("keep", keep), **named)
    return Answer(f"saved {', '.join(named)} in {version}", {"version": str(version)})


def _checkpoints(_: Place, path: str, *, verify: bool) -> tuple[list[Version], list[InvalidRequest], bool]:
    from workbench.checkpoint import folder

    found, errors = folder.versions(Path(path).expanduser())
    return found, errors + [each for version in found if verify for each in folder.damages(version)], verify


def _versions(result: tuple[Sequence[Version], Sequence[InvalidRequest], bool], _: str) -> Answer:
    versions, errors, verified = result
    rows = [_row(version) for version in versions]
    text = "\n".join(table_lines([_TITLES, *rows], lambda cell, width: cell.ljust(width)))
    value: dict[str, Any] = {
        "versions": [
            {
                "number": version.number,
                "created": version.created,
                "cluster": version.cluster,
                "ranks": version.ranks,
                "bytes": version.nbytes,
                "names": list(version.entries),
            }
            for version in versions
        ]
    }
    words = [error.args[0] for error in errors]
    notes = words or (["all files are as they were written"] if verified else [])
    html = None if notes else table(_TITLES, rows)
    return Answer(
        "\n".join([text, *([""] if notes else []), *notes]),
        value | {"damages": words},
        html,
        failure="" if words else None,
    )


def _row(version: Version) -> tuple[str, ...]:
    from dask.utils import format_bytes

    names = ", ".join(version.entries)
    size = format_bytes(version.nbytes)
    cluster = printable(version.cluster)  # any account may have written it
    return str(version.number), clock(version.created), cluster, str(version.ranks), size, names


CHECKPOINT = Subcommand(
    "checkpoint",
    "save variables of the notebook in a folder, from which workbench.restore(PATH) reads them",
    "run",
    _checkpoint,
    arguments=(
        Argument("path", "folder of the checkpoint, on a file system that all nodes share", "PATH", required=True),
        Argument("names", "names of the variables, separated by commas, for example X,y,model", "NAMES", required=True),
        Argument("--keep", "number of versions to keep; default: 2", "N", number=True),
    ),
    places=(NOTEBOOK,),
)
CHECKPOINTS = Subcommand(
    "checkpoints",
    "list the versions of a checkpoint",
    "look at a cluster",
    _checkpoints,
    _versions,
    (
        Argument("path", "folder of the checkpoint", "PATH", required=True),
        Argument("--verify", "read all files, and compare them with their checksums"),
    ),
)
