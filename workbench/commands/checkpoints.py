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
from workbench.text import clock, table_lines

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


def _checkpoints(_: Place, path: str, *, verify: bool) -> tuple[list[Version], list[InvalidRequest] | None]:
    from workbench.checkpoint import folder

    found = folder.versions(Path(path).expanduser())
    return found, [damage for version in found for damage in folder.damages(version)] if verify else None


def _versions(result: tuple[Sequence[Version], Sequence[InvalidRequest] | None], _: str) -> Answer:
    versions, damages = result
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
    if damages is None:
        return Answer(text, value, table(_TITLES, rows))
    words = [damage.args[0] for damage in damages]
    text = "\n".join([text, "", *(words or ["all files are as they were written"])])
    return Answer(text, value | {"damages": words}, failure="" if damages else None)


def _row(version: Version) -> tuple[str, ...]:
    from dask.utils import format_bytes

    names = ", ".join(version.entries)
    size = format_bytes(version.nbytes)
    return str(version.number), clock(version.created), version.cluster, str(version.ranks), size, names


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
