"""Folders of a cluster on a node are the user's own, and gone when the cluster is."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.deploy.job_spec import identity, public_id
from workbench.deploy.record import Record
from workbench.errors import RecordError
from workbench.host import node_dirs, stub

KINDS = [node_dirs.sockets, node_dirs.spill, node_dirs.shared_memory]
# the longest name of a socket that a cluster has
LONGEST = "panel-4194304-99999.sock"


@pytest.fixture
def cluster_id(monkeypatch):
    """Return the id of a cluster, whose folders are removed after the test, while its environment holds."""
    value = uuid.uuid4().hex
    yield value
    node_dirs.remove(value)


@pytest.fixture
def runtime(tmp_path_factory, monkeypatch):
    """Return a short folder that is XDG_RUNTIME_DIR."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("make", KINDS)
def test_a_folder_is_private_whatever_the_umask(make, cluster_id, runtime):
    before = os.umask(0)
    try:
        folder = make(cluster_id)
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert folder.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("make", KINDS)
def test_a_folder_is_made_once_and_then_used(make, cluster_id):
    (make(cluster_id) / "file").touch()
    assert (make(cluster_id) / "file").exists()


def test_nobody_can_make_a_folder_before_the_cluster_does(cluster_id):
    """They see the begin of the id in the scheduler and on command lines, and the names of folders that exist."""
    record = Record("a", 1, id=cluster_id)
    another = cluster_id[:16] + uuid.uuid4().hex[16:]
    assert public_id(record) == cluster_id[:16] == identity(record, "job")[:16]
    folders = [make(cluster_id) for make in KINDS]
    others = [make(another) for make in KINDS]
    node_dirs.remove(another)
    names = [folder.name[18:26] for folder in (*folders, *others)] + [stub.folder_name(cluster_id, "data", "a")[18:]]
    assert len(set(names)) == 7
    assert [folder.exists() for folder in (*folders, *others)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("make", KINDS)
def test_what_others_have_made_in_the_same_place_is_left_alone(make, cluster_id, monkeypatch):
    folder = make(cluster_id)
    (folder / "in-use").touch()
    os.utime(folder / "in-use", (0, 0))
    me = os.geteuid()
    other = uuid.uuid4().hex
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: me + 1)
        node_dirs.remove(cluster_id)
        node_dirs.remove_forsaken(folder.parent, but=other)
    assert folder.exists()


def test_clusters_have_folders_of_their_own(cluster_id):
    other = uuid.uuid4().hex
    folders = {make(one) for make in KINDS for one in (cluster_id, other)}
    node_dirs.remove(other)
    assert len(folders) == 6
    assert sum(folder.exists() for folder in folders) == 3


def test_sockets_are_in_the_users_runtime_folder(cluster_id, runtime):
    assert node_dirs.sockets(cluster_id).is_relative_to(runtime)


@pytest.mark.parametrize("given", ["", "/no/such/folder", "long"])
def test_sockets_are_elsewhere_when_there_is_no_such_folder_or_its_path_is_long(
    given, cluster_id, tmp_path, monkeypatch
):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long) if given == "long" else given)
    assert node_dirs.sockets(cluster_id).parent == Path("/") / "tmp"
    assert list(long.iterdir()) == []


def test_a_path_of_a_socket_is_never_too_long(cluster_id, tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        longest = Path(folder) / ("x" * (45 - len(folder)))
        longest.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(longest))
        in_runtime = node_dirs.sockets(cluster_id)
        assert in_runtime.is_relative_to(longest)
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert len(str(in_runtime / LONGEST)) == 107
        assert len(str(node_dirs.sockets(cluster_id) / LONGEST)) <= 107


@pytest.mark.parametrize("place", ["{folder}/new", "~/new", "$PLACE/new"])
def test_spilled_data_is_where_dask_is_told(cluster_id, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "PLACE"):
        monkeypatch.setenv(name, str(tmp_path))
    with dask.config.set({"temporary-directory": place.format(folder=tmp_path)}):
        assert node_dirs.spill(cluster_id).is_relative_to(tmp_path / "new")
        node_dirs.remove(cluster_id)
        assert not (tmp_path / "new").exists()


def test_parents_of_spilled_data_stay_if_they_were_there_or_are_used(cluster_id, tmp_path):
    with dask.config.set({"temporary-directory": str(tmp_path / "a" / "b")}):
        node_dirs.spill(cluster_id)
        (tmp_path / "a" / "mine").touch()
        node_dirs.remove(cluster_id)
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "mine"]
    with dask.config.set({"temporary-directory": str(tmp_path / "a")}):
        node_dirs.spill(cluster_id)
        (tmp_path / "a" / "mine").unlink()
        node_dirs.remove(cluster_id)
        assert (tmp_path / "a").exists()


@pytest.mark.parametrize("place", ["$NOT_SET", "${NOT_SET}/dask", "a/$NOT_SET/x"])
def test_a_variable_that_a_node_does_not_have_is_named_and_makes_no_folder(cluster_id, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    with dask.config.set({"temporary-directory": place}):
        with raises(RecordError, given=place):
            node_dirs.spill(cluster_id)
        node_dirs.remove(cluster_id)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_named_with_the_setting_for_its_place(cluster_id, tmp_path):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "new"
    with (
        dask.config.set({"temporary-directory": str(place)}),
        pytest.raises(RecordError),
    ):
        node_dirs.spill(cluster_id)


def test_folders_are_removed_although_a_full_disk_has_no_place_for_temporary_files(cluster_id, runtime, monkeypatch):
    folders = [node_dirs.sockets(cluster_id), node_dirs.shared_memory(cluster_id)]

    def full():
        raise FileNotFoundError(2, "No usable temporary directory found")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "gettempdir", full)
        node_dirs.remove(cluster_id)
    assert [folder for folder in folders if folder.exists()] == []


def test_shared_memory_is_not_in_a_small_shared_memory_of_a_container(cluster_id, monkeypatch):
    monkeypatch.setattr(node_dirs.shutil, "disk_usage", lambda _: SimpleNamespace(total=8 << 20))

    assert node_dirs.shared_memory(cluster_id).parent == Path(tempfile.gettempdir())


@pytest.mark.parametrize("open_mode", [0o750, 0o705, 0o777])
@pytest.mark.parametrize("make", KINDS)
def test_an_open_folder_is_refused_and_the_advice_helps(make, open_mode, cluster_id, runtime):
    folder = make(cluster_id)
    folder.chmod(open_mode)
    with pytest.raises(RecordError):
        make(cluster_id)
    another = uuid.uuid4().hex
    assert mode(make(another)) == 0o700
    node_dirs.remove(another)


def test_a_folder_of_another_user_is_refused(cluster_id, runtime, monkeypatch):
    node_dirs.sockets(cluster_id)
    me = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: me + 1)
        with pytest.raises(RecordError):
            node_dirs.sockets(cluster_id)


def test_a_link_put_there_by_somebody_is_refused(cluster_id, runtime, tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    taken = Path(stub.sockets_folder(cluster_id, stub.node()))
    taken.symlink_to(target)
    with pytest.raises(RecordError):
        node_dirs.sockets(cluster_id)
    assert list(target.iterdir()) == []
    taken.unlink()


def test_a_file_put_there_by_somebody_is_refused(cluster_id, runtime):
    taken = Path(stub.sockets_folder(cluster_id, stub.node()))
    taken.touch(mode=0o600)
    with pytest.raises(RecordError):
        node_dirs.sockets(cluster_id)
    taken.unlink()


def test_removing_makes_nothing(cluster_id, runtime):
    node_dirs.remove(cluster_id)
    assert list(runtime.iterdir()) == []


def test_removing_takes_everything_and_can_be_repeated(cluster_id):
    folders = [make(cluster_id) for make in KINDS]
    for folder in folders:
        (folder / "data").write_text("data")
    node_dirs.remove(cluster_id)
    node_dirs.remove(cluster_id)
    assert [folder.exists() for folder in folders] == [False] * 3


@pytest.fixture
def segment(monkeypatch, tmp_path):
    """Return a function that makes a segment as of MPICH, of an age in seconds, which ends of other clusters leave."""
    patterns = tuple((tmp_path, pattern) for _, pattern in node_dirs._MPICH_FILES)
    monkeypatch.setattr(node_dirs, "_MPICH_FILES", patterns)

    def make(age, prefix="mpich_shm"):
        path = tmp_path / f"{prefix}_{uuid.uuid4().hex}"
        path.write_bytes(bytes(4096))
        os.utime(path, (time.time() - age,) * 2)
        return path

    return make


@pytest.mark.parametrize("prefix", ["mpich_shm", "ucx_shm_posix", "Intel_MPI"])
def test_segments_that_killed_ranks_of_mpich_left_are_removed_unless_they_are_used(prefix, segment):
    orphan, used, fresh = segment(1000, prefix), segment(1000, prefix), segment(-60, prefix)
    with open(used, "r+b") as file, mmap.mmap(file.fileno(), 0):
        node_dirs.remove("0" * 32)
    assert [path.exists() for path in (orphan, used, fresh)] == [False, True, True]


def test_a_segment_of_a_world_that_has_failed_at_its_start_is_removed_as_soon_as_it_is_old_enough(segment, monkeypatch):
    monkeypatch.setattr(node_dirs, "_sees_all_processes", lambda: True)
    path = segment(0)
    node_dirs.remove("0" * 32)
    assert not path.exists()


def test_in_a_container_young_segments_stay_since_their_ranks_may_be_out_of_sight(segment, monkeypatch):
    young, old = segment(1), segment(1000)
    for all_are_seen in (False, True):
        monkeypatch.setattr(node_dirs, "_sees_all_processes", lambda seen=all_are_seen: seen)
        node_dirs.remove("0" * 32)
        assert [path.exists() for path in (young, old)] == [not all_are_seen, False]


def test_segments_of_ranks_that_are_about_to_end_are_waited_for(segment):
    path = segment(1000)
    maps = (
        "import mmap, sys, time; file = open(sys.argv[1], 'r+b'); held = mmap.mmap(file.fileno(), 0);"
        "print('mapped', flush=True); sys.stdin.read(); time.sleep(0.3)"
    )
    words = [sys.executable, "-c", maps, str(path), "workbench.rank", "1" * 16]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        assert rank.stdout.readline() == b"mapped\n"
        node_dirs.remove("0" * 32)
        assert path.exists()
        rank.stdin.close()
        node_dirs.remove("1" * 32)
        assert not path.exists()


HOLD = """
import sys
from workbench.host import node_dirs
node_dirs.acquire_node(sys.argv[1], "world-0")
print("held", flush=True)
sys.stdin.read()
"""


def test_what_killed_processes_have_left_on_a_node_goes_with_the_next_cluster_there(monkeypatch):
    monkeypatch.setattr(node_dirs, "_MARK_TIME", 0.0)
    killed, running, other = "ab" * 16, "cd" * 16, "ef" * 16
    with (
        subprocess.Popen([sys.executable, "-c", HOLD, killed], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dead,
        subprocess.Popen([sys.executable, "-c", HOLD, running], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alive,
    ):
        assert dead.stdout.readline() == alive.stdout.readline() == b"held\n"
        left = [node_dirs.shared_memory(killed), node_dirs.sockets(killed), node_dirs.spill(killed)]
        used = [node_dirs.shared_memory(running), node_dirs.sockets(running), node_dirs.spill(running)]
        dead.kill()
        dead.wait(DEADLINE)

        node_dirs.acquire_node(other, "world-0")

        assert not any(folder.exists() for folder in left)
        assert all(folder.exists() for folder in used)
        alive.stdin.close()
        alive.wait(DEADLINE)
    node_dirs.release_node(other)
    assert not node_dirs.shared_memory(other, make=False).exists()
    node_dirs.remove(running)


def test_a_node_is_vacated_by_the_last_process_alone():
    cluster = "ba" * 16
    with subprocess.Popen([sys.executable, "-c", HOLD, cluster], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        assert peer.stdout.readline() == b"held\n"
        node_dirs.acquire_node(cluster, "world-0")
        node_dirs.release_node(cluster)
        assert node_dirs.shared_memory(cluster, make=False).exists()
        peer.stdin.close()
        peer.wait(DEADLINE)
    node_dirs.release_node(cluster)
    assert not node_dirs.shared_memory(cluster, make=False).exists()


def test_a_node_that_is_vacated_leaves_those_alone_that_share_its_disks(monkeypatch, tmp_path):
    cluster = "dc" * 16
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        folders = []
        for node in ("n1", "n2"):
            monkeypatch.setattr(stub, "node", lambda node=node: node)
            folders += [[node_dirs.sockets(cluster), node_dirs.spill(cluster)]]
        node_dirs.acquire_node(cluster, "world-0")
        node_dirs.release_node(cluster)
        exist = [[folder.exists() for folder in of_node] for of_node in folders]
        node_dirs.remove(cluster)

    assert exist == [[True, True], [False, False]]
    assert not any(folder.exists() for of_node in folders for folder in of_node)
