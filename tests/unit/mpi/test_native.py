"""Arrays as C sees them, and C files made into libraries."""

from __future__ import annotations

import ctypes
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raised import raises

from workbench.errors import InvalidRequest, MPIMismatch, MPINotFound
from workbench.launch.mpi_library import Library
from workbench.mpi import native as mpi_compile
from workbench.mpi.native import build, pointer

NUMBERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
ADD = "int add(int a, int b) { return a + b; }\n"


def unaligned():
    return np.frombuffer(bytearray(25), np.float64, count=3, offset=1)


def read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@given(st.sampled_from(NUMBERS), st.integers(0, 50))
def test_a_pointer_leads_to_the_memory_of_the_array(dtype, length):
    array = np.arange(length).astype(dtype)

    into = pointer(array, dtype)

    assert ctypes.cast(into, ctypes.c_void_p).value == array.ctypes.data
    assert into[:length] == array.tolist()


def test_what_c_writes_is_in_the_array():
    array = np.zeros((2, 2), np.float32)
    pointer(array, np.float32, writable=True)[3] = 7.5
    assert array[1, 1] == 7.5


def test_complex_numbers_are_pairs_of_real_ones():
    into = pointer(np.array([1 + 2j, 3 - 4j]), "complex128")
    assert isinstance(into, ctypes.POINTER(ctypes.c_double))
    assert into[:4] == [1.0, 2.0, 3.0, -4.0]


def test_a_pointer_keeps_its_array_alive():
    assert pointer(np.full(1000, 7.5), "float64")[:1000] == [7.5] * 1000


def test_an_empty_block_has_a_pointer():
    assert pointer(np.empty((0, 3)), "float64", writable=True)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        ([1.0], "takes a NumPy array, not list"),
        (pd.Series([1.0]), r"not Series\. Convert it, for example with its to_numpy\(\)"),
        (np.zeros(3, np.float32), r"dtype float32, and the C code takes float64\. .*astype\('float64'\)"),
        (np.zeros((4, 4))[:, ::2], r"\(4, 2\) is not contiguous in C order .*ascontiguousarray"),
        (np.asfortranarray(np.zeros((3, 3))), "not contiguous in C order"),
        (unaligned(), r"alignment\. Pass a copy\(\)"),
        (read_only(), r"read-only, but the C code must write to it\. Pass a copy\(\)"),
    ],
)
def test_an_array_that_does_not_fit_is_refused_in_a_sentence(array, said):
    with pytest.raises(InvalidRequest, match=said):
        pointer(array, "float64", writable=True)


@pytest.mark.parametrize("dtype", ["object", "U5", "datetime64[ns]", "float16", ">f8", "f8,i4"])
def test_what_c_has_no_number_type_for_is_refused(dtype):
    with raises(InvalidRequest, option="array"):
        pointer(np.zeros(3, dtype))


def test_a_type_of_c_is_no_dtype():
    with raises(InvalidRequest, option="dtype", given="double *"):
        pointer(np.zeros(3), "double *")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "add.c"
    path.write_text(ADD)
    return path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "libraries"


@pytest.fixture
def other_compiler(tmp_path, monkeypatch):
    """Let there be one mpicc only: a program of this text."""

    def replace(text):
        if text is not None:
            mpicc = tmp_path / "bin" / "mpicc"
            mpicc.parent.mkdir()
            mpicc.write_text(f"#!/bin/sh\n{text}\n")
            mpicc.chmod(0o755)
        library = Library("openmpi", (5, 0, 11), str(tmp_path / "lib" / "libmpi.so"), "4.1.2")
        monkeypatch.setattr(mpi_compile, "loaded_library_here", lambda: library)
        monkeypatch.setattr("sys.executable", str(tmp_path / "none" / "python"))
        monkeypatch.setenv("PATH", str(tmp_path / "none"))
        monkeypatch.setattr(mpi_compile, "find_compiler", mpi_compile.find_compiler.__wrapped__)

    return replace


def test_a_library_is_built_once_and_can_be_called(source, folder):
    library = build(source, folder=folder)
    made = Path(library).stat()

    assert ctypes.CDLL(library).add(3, 4) == 7
    assert build(str(source), folder=folder) == library
    assert Path(library).stat().st_mtime_ns == made.st_mtime_ns
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_options_in_one_text_are_refused(source, folder):
    with raises(InvalidRequest, option="options", given="-O2 -g", allowed="a list: options=['-O2', '-g']"):
        build(source, options="-O2 -g", folder=folder)


def test_cplusplus_is_built_by_mpicxx(tmp_path, folder):
    source = tmp_path / "largest.cpp"
    source.write_text("""
        #include <algorithm>
        #include <mpi.h>
        extern "C" double largest(const double *x, long n) { return *std::max_element(x, x + n); }
    """)
    largest = ctypes.CDLL(build(source, folder=folder)).largest
    largest.restype = ctypes.c_double

    assert largest(pointer(np.array([1.0, 7.5, 3.0]), "float64"), ctypes.c_long(3)) == 7.5


def test_by_default_libraries_are_kept_in_the_users_cache(source, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Path(build(source)).parent == tmp_path / "cache" / "mpi-workbench"


def test_a_changed_header_and_other_options_make_another_library(source, folder):
    header = source.with_name("one.h")
    header.write_text("#define ONE 1\n")
    source.write_text('#include "one.h"\nint one(void) { return ONE MORE; }\n')
    libraries = [build(source, options=["-DMORE="], folder=folder), build(source, options=["-DMORE=+1"], folder=folder)]
    header.write_text("#define ONE 10\n")
    libraries.append(build(source, options=["-DMORE="], folder=folder))

    assert [ctypes.CDLL(library).one() for library in libraries] == [1, 2, 10]


def test_another_version_of_the_compiler_makes_another_library(source, folder, tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    monkeypatch.setenv("OMPI_CC", str(compiler))
    monkeypatch.setenv("MPICH_CC", str(compiler))
    libraries = set()
    for version in (1, 2):
        compiler.write_text(f'#!/bin/sh\nexec cc -U__VERSION__ -D__VERSION__={version} "$@"\n')
        compiler.chmod(0o755)
        libraries.add(build(source, folder=folder))

    assert len(libraries) == 2


def test_of_many_at_once_one_compiles_and_all_have_the_library(source, folder, tmp_path, monkeypatch):
    compiler, compiled = tmp_path / "cc", tmp_path / "compiled"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {compiled}\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("OMPI_CC", str(compiler))
    monkeypatch.setenv("MPICH_CC", str(compiler))
    with ThreadPoolExecutor(8) as threads:
        libraries = set(threads.map(lambda _: build(source, folder=folder), range(8)))

    assert len(libraries) == 1
    assert sum(" -o " in command for command in compiled.read_text().splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted([Path(libraries.pop()).name, "lock"])


def test_a_program_that_does_not_compile_is_shown_with_what_the_compiler_says(source, folder):
    source.write_text("int add(int a, int b) { return a + c; }\n")
    with pytest.raises(InvalidRequest, match=r"(?s)add.c does not compile:\n.*add\.c:1:\d+: error: .*c.* undeclared"):
        build(source, folder=folder)
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_missing_header_is_named(source, folder):
    source.write_text('#include "nowhere.h"\n')
    with pytest.raises(InvalidRequest, match=r"nowhere\.h"):
        build(source, folder=folder)


@pytest.mark.parametrize(
    ("name", "said"), [("add.py", r"add.py is not a C or C\+\+ file"), ("none.c", "File .*none.c does not exist")]
)
def test_a_source_that_is_none_is_refused(tmp_path, name, said):
    with pytest.raises(InvalidRequest, match=said):
        build(tmp_path / name, folder=tmp_path)


def test_a_folder_that_others_can_write_to_is_refused(source, folder):
    folder.mkdir()
    folder.chmod(0o777)
    with raises(InvalidRequest, option="folder"):
        build(source, folder=folder)


def test_a_folder_that_cannot_be_is_refused(source):
    with pytest.raises(InvalidRequest):
        build(source, folder=source / "libraries")


def test_without_a_wrapper_the_sentence_says_what_to_install(source, folder, other_compiler):
    other_compiler(None)
    with raises(MPINotFound, given="mpicc"):
        build(source, folder=folder)


def test_a_wrapper_without_a_compiler_is_named_with_its_words(source, folder, other_compiler):
    other_compiler("echo 'unable to find cc in your PATH' >&2; exit 1")
    with raises(MPINotFound, given=None):
        build(source, folder=folder)


def test_the_wrapper_of_another_mpi_is_refused(source, folder, other_compiler):
    other_compiler("echo '#define MPICH_VERSION \"5.0.2\"'")
    with pytest.raises(MPIMismatch):
        build(source, folder=folder)


def test_the_abi_of_mpi_5_has_a_wrapper_of_its_own(other_compiler, tmp_path, monkeypatch):
    other_compiler("echo '#define MPICH_VERSION \"5.0.2\"'")
    library = Library("mpich", (5, 0, 2), str(tmp_path / "lib" / "libmpi_abi.so"), "4.2.0", standard_abi=True)
    monkeypatch.setattr(mpi_compile, "loaded_library_here", lambda: library)
    with raises(MPINotFound, given="mpicc_abi"):
        mpi_compile.find_compiler("c")

    wrapper = tmp_path / "bin" / "mpicc_abi"
    wrapper.write_text("#!/bin/sh\necho '#define MPI_ABI_VERSION 1'\n")
    wrapper.chmod(0o755)
    assert mpi_compile.find_compiler("c") == str(wrapper)
