"""Compiles C and C++ code with the MPI of this process, and passes blocks and the communicator to it (`ctypes`).

::

    @workbench.spmd
    def covariance(comm, X, library):
        code = ctypes.CDLL(library)
        mean = np.empty(X.shape[1])
        error = code.means(
            handle(comm), ctypes.c_long(len(X)), ctypes.c_int(X.shape[1]),
            pointer(X, "float64"), pointer(mean, "float64", writable=True),
        )

    covariance(X, build("means.c"))

C code uses the memory of the block itself, without a copy. MPI calls in C code cannot be canceled, unlike calls of the
communicator in Python.

``mpicc`` or ``mpicxx`` is searched beside the MPI library, then on the path, and its ``mpi.h`` must be of the same
MPI, because handles of different MPIs are not compatible. Libraries are kept in a private folder. Their names contain a
hash of all inputs, so each library is compiled one time.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest, MPIMismatch, MPINotFound, did_you_mean
from workbench.launch.mpi_library import Library, loaded_library, programs

if TYPE_CHECKING:
    import numpy.typing as npt


_LANGUAGES = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++"}
_WRAPPERS = {"c": "mpicc", "c++": "mpicxx"}
# Intel's mpi.h also defines the macro of MPICH, so Intel comes first. That of the ABI of MPI 5 has the last macro only.
_MACROS = {
    "OMPI_MAJOR_VERSION": "openmpi",
    "I_MPI_VERSION": "intelmpi",
    "MPICH_VERSION": "mpich",
    "MPI_ABI_VERSION": "the ABI of MPI 5",
}
_INSTALL = "Install a compiler (Debian: apt-get install g++), or load the module of a compiler of your site."
_TIMEOUT = 300.0
# Characters of the compiler's output in a message. The first error is the important one.
_MAX_OUTPUT = 4000


def build(source: str | Path, *, options: Sequence[str] = ("-O3",), folder: str | Path | None = None) -> str:
    """Compile a C or C++ file to a shared library, with the MPI of this environment.

    Parameters
    ----------
    source : str or pathlib.Path
        The file: ``.c``, ``.cc``, ``.cpp`` or ``.cxx``.
    options : sequence of str, default=("-O3",)
        Options of the compiler and the linker, for example ``["-O2", "-g"]``.
    folder : str or pathlib.Path, optional
        Folder for the library, to which no other user may write. Default: ``mpi-workbench`` in the user's cache folder
        (``XDG_CACHE_HOME``, or ``~/.cache``).

    Returns
    -------
    str
        Path of the library, for `ctypes.CDLL`.

    Raises
    ------
    InvalidRequest
        If the file does not exist or does not compile (with the output of the compiler), or if the options or the
        folder are not valid.
    MPINotFound
        If no compiler of this MPI is found.
    MPIMismatch
        If only compilers of other MPIs are found.

    Notes
    -----
    Call this function in the notebook if the ranks share its home folder and have the same processors, otherwise on the
    ranks: one process per node compiles, and the others wait. The file is compiled again if the file, an included
    header, the options, the compiler or the MPI has changed.

    Examples
    --------
    >>> import ctypes
    >>> library = build("covariance.c")
    >>> workbench.run_on_ranks(lambda comm: hasattr(ctypes.CDLL(library), "covariance"))
    [True, True, True, True]
    """
    if isinstance(options, str):
        raise InvalidRequest(option="options", given=options, allowed=f"a list: options={options.split()}")
    source = Path(source).absolute()
    language = _LANGUAGES.get(source.suffix)
    if language is None:
        raise InvalidRequest(f"{source.name} is not a C or C++ file: {did_you_mean(source.suffix, _LANGUAGES)}")
    if not source.is_file():
        raise InvalidRequest(f"File {source} does not exist on {platform.node()}. Pass a path of a file on that host.")
    compiler = find_compiler(language)
    flags = ["-shared", "-fPIC", str(source), *options]
    # The macros include the version of the compiler, and the instructions of this processor if -march=native is given.
    text = _compile([compiler, "-E", "-dD", *flags], source)
    inputs = "\0".join([text, compiler, *options, str(loaded_library_here()), platform.machine()])
    target = _library_folder(folder) / f"{source.stem}-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.so"
    with _locked(target.parent):
        if not target.exists():
            # The complete library is renamed, so no process loads a part of it.
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                finished = Path(scratch) / target.name
                _compile([compiler, *flags, "-o", str(finished)], source)
                finished.replace(target)
    return str(target)


@cache
def loaded_library_here() -> Library:
    """Return `loaded_library`, cached per process."""
    return loaded_library()


@cache
def find_compiler(language: str) -> str:
    """Return the path of the compiler wrapper of this MPI for ``c`` or ``c++``; raises as `build`."""
    library = loaded_library_here()
    name = _WRAPPERS[language]
    if library.standard_abi:
        name, wanted = f"{name}_abi", _MACROS["MPI_ABI_VERSION"]
    else:
        wanted = library.flavor
    others = []
    for path in programs(library.path, (name, f"{name}.{library.flavor}")):
        done = _run([path, "-E", "-dM", "-x", language, "-"], "#include <mpi.h>\n")
        flavor = flavor_of(done.stdout)
        if flavor == wanted:
            return path
        others.append(f"{path} ({f'of {flavor}' if flavor else _shortened(done.stderr) or 'of an unknown MPI'})")
    if not others:
        raise MPINotFound(f"{library}, but no {name} was found beside this library or on PATH. {_INSTALL}", given=name)
    failure = MPIMismatch if any(" (of " in other for other in others) else MPINotFound
    raise failure(f"{library}, but no {name} compiles for it: {', '.join(others)}. {_INSTALL}")


def flavor_of(macros: str) -> str | None:
    """Return the MPI of the macros of an ``mpi.h``, or None.

    Examples
    --------
    >>> flavor_of('#define MPICH_VERSION "5.0.2"')
    'mpich'
    """
    defined = set(re.findall(r"^#define (\w+)", macros, re.MULTILINE))
    return next((flavor for macro, flavor in _MACROS.items() if macro in defined), None)


def _compile(command: list[str], source: Path) -> str:
    done = _run(command)
    if done.returncode:
        raise InvalidRequest(f"{source.name} does not compile:\n{_shortened(done.stderr or done.stdout)}")
    return done.stdout


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidRequest(f"the compiler did not end within {_TIMEOUT:g} s: {' '.join(command)}") from error


def _shortened(text: str) -> str:
    text = text.strip()
    rest = len(text) - _MAX_OUTPUT
    return f"{text[:_MAX_OUTPUT]}\n[... {rest} more characters]" if rest > 0 else text


def _library_folder(folder: str | Path | None) -> Path:
    """Return the folder for libraries, created if it is missing; other users must not be able to write to it."""
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
        raise InvalidRequest(f"libraries cannot be kept in {folder} ({error}). Pass another folder=.") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise InvalidRequest(
            f"other users can write to {path}, and libraries are loaded from there. Pass another folder=, or make the "
            f"folder private: chmod go-w '{path}'",
            option="folder",
        )
    return path


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. On a file system without locks, several processes may compile the same library."""
    deadline = time.monotonic() + _TIMEOUT
    with (folder / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InvalidRequest(
                        f"another process has locked {folder} for more than {_TIMEOUT:g} s. End that process, or pass "
                        "another folder=."
                    ) from None
                time.sleep(0.02)
            except OSError:
                break
            else:
                break
        yield


__all__ = ["build", "handle", "pointer"]


def handle(comm: Any) -> ctypes.c_int | ctypes.c_void_p:
    """Return the ``MPI_Comm`` of an mpi4py communicator, to pass to C code.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Any mpi4py communicator, for example the one of an SPMD function.

    Returns
    -------
    ctypes.c_int or ctypes.c_void_p
        An integer with MPICH and derived MPIs, a pointer with Open MPI and with the ABI of MPI 5. The type is the one
        for ``argtypes``. The value is valid as long as the communicator.

    Raises
    ------
    InvalidRequest
        If `comm` is not a communicator, or was freed.
    """
    from mpi4py import MPI

    if not isinstance(comm, MPI.Comm):
        raise InvalidRequest(
            f"handle() takes an mpi4py communicator, not {type(comm).__name__}. Pass the `comm` of the SPMD function."
        )
    if comm == MPI.COMM_NULL:
        raise InvalidRequest("the communicator is MPI_COMM_NULL: it was freed, or this rank is not a member.")
    c_type = ctypes.c_int if MPI._sizeof(comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p  # noqa: SLF001
    return c_type(comm.handle)


def pointer(array: Any, dtype: npt.DTypeLike | None = None, *, writable: bool = False) -> Any:
    """Return a typed `ctypes` pointer to the first element of an array, without a copy.

    Parameters
    ----------
    array : numpy.ndarray
        NumPy array of any shape, contiguous in C order, like blocks.
    dtype : dtype, optional
        The type that the C code expects, for example ``"float64"`` for ``double *``. Default: the dtype of the array.
    writable : bool, default=False
        Whether the C code writes to the array.

    Returns
    -------
    ctypes pointer
        ``POINTER(c_double)`` for float64, and so on. For complex numbers a pointer to their real type, with alternating
        real and imaginary parts. The pointer keeps the array alive.

    Raises
    ------
    InvalidRequest
        If `dtype` is not valid, or the array is not a NumPy array, has another dtype or one without a C type, is not
        contiguous or not aligned, or is read-only although `writable` is True.

    Examples
    --------
    >>> import numpy as np
    >>> pointer(np.arange(3.0), "float64")[2]
    2.0
    """
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise InvalidRequest(
            f"pointer() takes a NumPy array, not {type(array).__name__}. Convert it, for example with its to_numpy()."
        )
    try:
        expected = array.dtype if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        allowed = "a NumPy dtype, 'float64' for double *, 'int32' for int *"
        raise InvalidRequest(option="dtype", given=dtype, allowed=allowed) from None
    if array.dtype != expected:
        raise InvalidRequest(
            f"the array has dtype {array.dtype}, and the C code takes {expected}. "
            f"Convert the array before, with astype({expected.name!r})."
        )
    name = f"the array of dtype {array.dtype} and shape {array.shape}"
    real = array.real.dtype if array.dtype.kind == "c" else array.dtype
    try:
        c_type: Any = np.ctypeslib.as_ctypes_type(real) if array.dtype.isnative and real.kind in "biuf" else None
    except NotImplementedError:
        c_type = None
    if c_type is None:
        raise InvalidRequest(
            f"{name} has a type without a number type in C. Convert the array before, for example with "
            "astype('float64').",
            option="array",
        )
    if not array.flags.c_contiguous:
        raise InvalidRequest(
            f"{name} is not contiguous in C order (strides {array.strides}). Pass a copy from "
            "numpy.ascontiguousarray(...)."
        )
    if not array.flags.aligned:
        raise InvalidRequest(f"{name} does not begin at a multiple of its items' alignment. Pass a copy().")
    if writable and not array.flags.writeable:
        raise InvalidRequest(f"{name} is read-only, but the C code must write to it. Pass a copy().")
    return array.ctypes.data_as(ctypes.POINTER(c_type))
