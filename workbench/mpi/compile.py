"""C and C++ files made into shared libraries, by the compiler wrapper of the MPI that mpi4py loads here.

``mpicc`` or ``mpicxx`` is looked for beside that library, then on the path, and its ``mpi.h`` has to be of the same
MPI: the handles of one mean nothing to another. Libraries are kept in a folder of the user's own, under a
name made from all that went into them, so that each is compiled once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from workbench.errors import InvalidRequest, MPIMismatch, MPINotFound, did_you_mean
from workbench.launch.mpi_library import Library, loaded_library, programs

_LANGUAGES = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++"}
_WRAPPERS = {"c": "mpicc", "c++": "mpicxx"}
# Intel's mpi.h names MPICH, too.
_MACROS = {"OMPI_MAJOR_VERSION": "openmpi", "I_MPI_VERSION": "intelmpi", "MPICH_VERSION": "mpich"}
_INSTALL = "Install a compiler (Debian: apt-get install g++), or load your site's module of one."
_TIMEOUT = 300.0
# Characters of what a compiler says; its first complaint is the one that matters.
_SHOWN = 4000


def build(source: str | Path, *, options: Sequence[str] = ("-O3",), folder: str | Path | None = None) -> str:
    """Make a shared library of a C or C++ file, with the MPI of this environment.

    Parameters
    ----------
    source
        The file: ``.c``, ``.cc``, ``.cpp`` or ``.cxx``.
    options
        For the compiler and the linker, one by one: ``["-O2", "-g"]``.
    folder
        Where the library is kept; no other user may write there. Default: ``mpi-workbench`` in the user's cache folder
        (``XDG_CACHE_HOME``, or ``~/.cache``).

    Returns
    -------
    str
        Path of the library, for `ctypes.CDLL`.

    Raises
    ------
    InvalidRequest
        If there is no such file, if it does not compile (with what the compiler says), or if the options or the folder
        are no good.
    MPINotFound
        If there is no compiler of this MPI.
    MPIMismatch
        If there are only those of other MPIs.

    Notes
    -----
    Call it in the notebook where ranks see the same home folder and have the same processors, else on the ranks: of
    several processes of a node, one compiles and the others wait for it. It is compiled anew if the file, a header
    that it includes, the options, the compiler or the MPI are others than before.

    Examples
    --------
    >>> code = ctypes.CDLL(build("covariance.c"))  # doctest: +SKIP
    """
    if isinstance(options, str):
        raise InvalidRequest(f"options={options!r} is one text: pass a list, options={options.split()}")
    source = Path(source).absolute()
    language = _LANGUAGES.get(source.suffix)
    if language is None:
        raise InvalidRequest(f"{source.name} is no C or C++ file: {did_you_mean(source.suffix, _LANGUAGES)}")
    if not source.is_file():
        raise InvalidRequest(f"there is no file {source}: name one that is seen from {platform.node()}")
    compiler = find_compiler(language)
    flags = ["-shared", "-fPIC", str(source), *options]
    text = _compile([compiler, "-E", *flags], source)
    made_of = "\0".join([text, compiler, *options, str(loaded_library_here()), platform.machine()])
    target = _own(folder) / f"{source.stem}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    with _alone(target.parent):
        if not target.exists():
            # Whoever sees the library under its name sees all of it.
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                finished = Path(scratch) / target.name
                _compile([compiler, *flags, "-o", str(finished)], source)
                finished.replace(target)
    return str(target)


@cache
def loaded_library_here() -> Library:
    """Return `loaded_library`, asked once in a process."""
    return loaded_library()


@cache
def find_compiler(language: str) -> str:
    """Return the path of the compiler wrapper of this MPI for ``c`` or ``c++``; raises as `build`."""
    library = loaded_library_here()
    name = _WRAPPERS[language]
    others = []
    for path in programs(library.path, (name, f"{name}.{library.flavour}")):
        done = _run([path, "-E", "-dM", "-x", language, "-"], "#include <mpi.h>\n")
        found = flavour_of(done.stdout)
        if found == library.flavour:
            return path
        others.append(f"{path} ({f'of {found}' if found else _shown(done.stderr) or 'of an unknown MPI'})")
    if not others:
        raise MPINotFound(f"{library}, but there is no {name} beside it or on PATH. {_INSTALL}")
    failure = MPIMismatch if any(" (of " in other for other in others) else MPINotFound
    raise failure(f"{library}, but no {name} compiles for it: {', '.join(others)}. {_INSTALL}")


def flavour_of(macros: str) -> str | None:
    """Return the MPI that the macros of an ``mpi.h`` tell of, or None.

    Examples
    --------
    >>> flavour_of('#define MPICH_VERSION "5.0.2"')
    'mpich'
    """
    defined = set(re.findall(r"^#define (\w+)", macros, re.MULTILINE))
    return next((flavour for macro, flavour in _MACROS.items() if macro in defined), None)


def _compile(command: list[str], source: Path) -> str:
    done = _run(command)
    if done.returncode:
        raise InvalidRequest(f"{source.name} does not compile:\n{_shown(done.stderr or done.stdout)}")
    return done.stdout


def _run(command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidRequest(f"{command[0]} did not end within {_TIMEOUT:g} s: {' '.join(command)}") from error


def _shown(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}\n[... {len(text) - _SHOWN} more characters]"


def _own(folder: str | Path | None) -> Path:
    """Return the folder for libraries, made if need be: code of others must not get there."""
    if folder is None:
        caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (caches if caches.is_absolute() else Path.home() / ".cache") / "mpi-workbench"
    path = Path(folder)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()
        status = path.stat()
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InvalidRequest(f"libraries cannot be kept in {folder} ({error}): name another folder=") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise InvalidRequest(
            f"other users can write to {path}, and libraries are loaded from there: name another folder=, or make it "
            f"yours with: chmod go-w '{path}'"
        )
    return path


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; nobody's where its file system has none, and then some compile in vain."""
    deadline = time.monotonic() + _TIMEOUT
    with (folder / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InvalidRequest(
                        f"another process compiles into {folder} for more than {_TIMEOUT:g} s: end it, or name "
                        "another folder="
                    ) from None
                time.sleep(0.02)
            except OSError:
                break
            else:
                break
        yield
