"""Records of clusters: private, whole, one per name, and never called stale without proof."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import DEADLINE, until
from support.raised import raises

from workbench.deploy import display, folder, registry
from workbench.deploy import ended as ended_because
from workbench.deploy.folder import RECORD, ClusterFolder, clusters_folder, logs_folder
from workbench.deploy.record import DAMAGED, SCHEMA, Record, World, parse
from workbench.deploy.registry import await_record
from workbench.errors import ClusterExists, ClusterNotFound, InvalidRequest, RecordError
from workbench.host.processes import ProcessId

HERE = ProcessId.here()
GONE = dataclasses.replace(HERE, started=HERE.started - 1)
ELSEWHERE = dataclasses.replace(GONE, host="login2", machine="another")
WHOLE = json.dumps(dataclasses.asdict(Record(name="a", ranks=2, process=HERE, id="0" * 32, created=0.0)))
NUMBERS = st.integers() | st.floats() | st.sampled_from([1e300, 10**300, 2**63, -1, 1e12])
ODD = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)

CREATE = """
import sys
from workbench.deploy import registry
from workbench.errors import ClusterExists
sys.stdout.write("r"); sys.stdout.flush()
sys.stdin.read(1)
for i in range(int(sys.argv[1])):
    try:
        registry.create(registry.Record(name=f"n{i}", ranks=2, state="ready"))
    except ClusterExists:
        sys.stdout.write("0")
    else:
        sys.stdout.write("1")
sys.stdout.flush()
sys.stdin.read()  # clusters of an ended process are stale
"""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Return a registry of this test's own."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "workbench"


def cluster(name="a", **fields):
    """Return the record of a new cluster."""
    record = Record(name=name, **{"ranks": 2, "state": "ready", **fields})
    registry.create(record)
    return record


def put(record, content):
    """Damage a record: write something into its file."""
    (ClusterFolder.of(record).path / RECORD).write_bytes(content if isinstance(content, bytes) else content.encode())


def changed(record, **fields):
    """Return the JSON text of a record with some fields changed."""
    return json.dumps(dataclasses.asdict(record) | fields)


def inside(folder):
    return sorted(path.name for path in folder.iterdir())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# names


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "0", "x" * 40])
def test_a_name_is_letters_digits_dots_and_dashes(name):
    assert registry.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".hidden",
        "-a",
        "_a",
        "x" * 41,
        "a b",
        "a/b",
        "../a",
        "a\n",
        "ä",
        "a*",
        "a[0]",
        "a\0",
        "$(id)",
        5,
        None,
        b"a",
    ],
)
def test_any_other_name_is_refused_with_what_is_allowed(name):
    with raises(
        InvalidRequest, option="name", allowed="1 to 40 letters, digits, '.', '_' and '-', the first a letter or digit"
    ) as caught:
        registry.check_name(name)
    assert repr(name) in str(caught.value)


@given(st.text(max_size=50))
def test_no_name_leads_out_of_the_registry(name):
    try:
        registry.check_name(name)
    except InvalidRequest:
        return
    assert (clusters_folder() / name).resolve().parent == clusters_folder().resolve()


def test_a_free_name_is_the_first_that_no_cluster_has():
    assert registry.free_name() == "mpi"
    cluster("mpi")
    assert registry.free_name() == "mpi-2"
    cluster("mpi-3")
    assert registry.free_name() == "mpi-2"
    cluster("mpi-2")
    assert registry.free_name() == "mpi-4"


def test_a_free_name_can_always_be_used(root):
    cluster("other")
    (root / "clusters" / "mpi").write_text("not a folder")
    cluster(registry.free_name())
    assert "mpi-2" in registry.names()


def test_names_are_those_of_clusters_alone(root):
    assert registry.names() == []
    for name in ("b", "a"):
        cluster(name)
    for stray in ("lost and found", ".removed", "_old"):
        (root / "clusters" / stray).mkdir()
    assert registry.names() == ["a", "b"]


# creating


def test_folders_and_record_are_private_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "share" / "jupyter"))
    before = os.umask(0)
    try:
        record = cluster()
    finally:
        os.umask(before)
    folders = [*ClusterFolder.of(record).path.relative_to(tmp_path).parents][:-1]
    assert [mode(tmp_path / folder) for folder in folders] == [0o700] * 4
    assert [
        mode(folder) for folder in (logs_folder(), ClusterFolder.of(record).path, ClusterFolder.of(record).logs)
    ] == [0o700] * 3
    assert mode(ClusterFolder.of(record).path / RECORD) == 0o600


@pytest.mark.parametrize("open_mode", [0o777, 0o722, 0o702, 0o775])
def test_a_folder_in_which_others_can_put_theirs_in_the_place_of_the_records_is_refused(open_mode):
    record = cluster()
    root = clusters_folder().parent
    root.chmod(open_mode)
    uses = (registry.names, registry.clean, registry.free_name, lambda: registry.read("a"), lambda: cluster("b"))
    for use in uses:
        with raises(RecordError, given=f"{open_mode:o}", allowed=()):
            use()
    root.chmod(0o700)
    assert registry.read("a") == record


def test_the_advice_closes_all_that_was_opened_at_once():
    """Kubernetes opens each file of a volume for the group of its users whenever a server starts (`fsGroup`)."""
    record = cluster()
    root = clusters_folder().parent
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))
    with pytest.raises(RecordError) as caught:
        cluster("b")
    command = str(caught.value).rpartition(": ")[2]
    assert command == f"chmod -R go-rwx '{root}'"

    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert registry.read("a") == record
    cluster("b")


def test_a_folder_of_another_user_around_the_records_is_refused(monkeypatch):
    _as_another_user(monkeypatch)
    with raises(RecordError, given=os.getuid()):
        registry.names()


def _as_another_user(monkeypatch):
    """Make a cluster, and be another user from then on; return who the first one is."""
    cluster()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    return me


def test_a_record_is_read_as_it_was_written():
    world, following = World(index=0, ranks=6, state="ready", up=2), World(index=1, ranks=4, starts=2)
    its = {"memory": 10**9, "address": "tls://127.0.0.1:1", "job": "7:8", "message": "naïve ✓"}
    record = cluster(world=world, next=following, **its)
    assert registry.read("a") == record
    assert (record.total, record.up) == (6, 2)


def test_a_record_without_a_world_has_the_ranks_that_were_asked_for():
    assert (cluster().total, cluster("b").up) == (2, 0)


def test_a_second_cluster_of_a_name_is_refused_and_changes_nothing():
    record = cluster()
    for second in (record, Record(name="a", ranks=4)):
        with raises(ClusterExists, option="name", given="a"):
            registry.create(second)
    assert registry.read("a") == record
    assert inside(logs_folder()) == [ClusterFolder.of(record).logs.name]
    assert inside(clusters_folder()) == ["a"]


def test_a_name_that_cannot_be_is_refused_before_anything_is_made(root):
    with pytest.raises(InvalidRequest):
        registry.create(Record(name="../a", ranks=1))
    assert not root.exists()


@pytest.mark.parametrize("folder", ["clusters", "logs"])
def test_a_registry_that_others_can_look_into_is_refused(root, folder):
    (root / folder).mkdir(parents=True)
    (root / folder).chmod(0o755)
    with raises(RecordError, given="755", allowed="700"):
        cluster()
    assert registry.names() == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_record_that_cannot_be_written_leaves_no_folder(monkeypatch, error):
    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)) as caught:
        cluster()
    assert caught.value is error
    assert inside(clusters_folder()) == []


def test_a_start_that_was_killed_before_it_wrote_does_not_keep_the_name(root):
    cluster("other")
    (root / "clusters" / "a").mkdir(mode=0o700)
    assert registry.read(cluster("a").name).ranks == 2


@pytest.mark.parametrize("stale", [False, True])
def test_of_processes_that_create_the_same_cluster_exactly_one_wins(stale):
    rounds = 20
    if stale:
        for i in range(rounds):
            cluster(f"n{i}", process=GONE)
    racers = [
        subprocess.Popen([sys.executable, "-c", CREATE, str(rounds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout.read(1) == b"r"
    for racer in racers:
        racer.stdin.write(b"g")
        racer.stdin.flush()
    results = [racer.stdout.read(rounds).decode() for racer in racers]
    for racer in racers:
        racer.communicate(timeout=DEADLINE)
    assert [one + two in ("01", "10") for one, two in zip(*results, strict=True)] == [True] * rounds


def test_who_finds_a_stale_record_does_not_remove_what_came_in_its_place(monkeypatch):
    cluster(process=GONE)
    successor = Record(name="a", ranks=4, state="ready")
    outcomes = []

    def interfere(cluster_id):
        """Another process creates the cluster between the look and the removal."""
        monkeypatch.setattr(registry.node_dirs, "remove", lambda _: None)
        try:
            registry.create(successor)
        except ClusterExists:
            outcomes.append("refused")
        else:
            outcomes.append("created")

    monkeypatch.setattr(registry.node_dirs, "remove", interfere)
    try:
        cluster()
    except ClusterExists:
        outcomes.append("refused")
    else:
        outcomes.append("created")
    assert sorted(outcomes) == ["created", "refused"]


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("late", [False, True], ids=["before the last look", "after it"])
def test_without_locks_the_successor_of_a_stale_cluster_stays(monkeypatch, late):
    stale = cluster(process=GONE)
    successor = Record(name="a", ranks=4, state="ready")
    monkeypatch.setattr(registry.fcntl, "flock", no_locks)
    owns_lease = ClusterFolder.owns_lease

    def replace():
        shutil.rmtree(ClusterFolder.of(stale).path)
        registry.create(successor)

    def look(record):
        owns = owns_lease(record)
        if late and owns:
            replace()
        return owns

    monkeypatch.setattr(ClusterFolder, "owns_lease", look)
    monkeypatch.setattr(registry.node_dirs, "remove", lambda _: None if late else replace())
    assert registry.clean() == []
    assert registry.read("a") == successor
    assert [path.name for path in clusters_folder().iterdir()] == ["a"]


# writing


def test_a_reader_sees_the_old_record_or_the_new_one_never_a_part():
    record = cluster(message="0" * 5000)
    stop = threading.Event()

    def write():
        for i in range(10_000):
            if stop.is_set():
                break
            ClusterFolder.of(record).write(record.replace(message=str(i % 10) * 5000))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {registry.read("a").message for _ in range(300)}
        until("the writer to have its turn", lambda: seen.add(registry.read("a").message) or len(seen) > 1)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1
    assert all(len(message) == 5000 and len(set(message)) == 1 for message in seen)


def test_writing_leaves_nothing_but_the_record():
    record = cluster()
    ClusterFolder.of(record).write(record.replace(state="closing"))
    assert inside(ClusterFolder.of(record).path) == [RECORD]
    assert mode(ClusterFolder.of(record).path / RECORD) == 0o600


def test_a_removed_folder_is_never_made_again():
    record = cluster()
    ClusterFolder.of(record).remove()
    with pytest.raises(FileNotFoundError):
        ClusterFolder.of(record).write(record)
    assert registry.names() == []


def test_a_head_does_not_write_over_the_record_of_its_successor():
    record = cluster()
    shutil.rmtree(ClusterFolder.of(record).path)
    successor = cluster(ranks=4)
    ClusterFolder.of(record).update(record.replace(state="closing"))
    assert registry.read("a") == successor
    ClusterFolder.of(successor).update(successor.replace(state="closing"))
    assert registry.read("a").state == "closing"


def test_a_record_that_its_head_cannot_replace_is_marked_until_it_can(monkeypatch):
    record = cluster(message="world 0 is ready")
    later = record.replace(state="degraded", message="rank 1 was lost")
    with monkeypatch.context() as full:
        full.setattr(folder, "replace_file", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with raises(OSError, errno=errno.ENOSPC):
            ClusterFolder.of(later).update(later)
    message = r"world 0 is ready; this was the state at \d+:\d+, and its head could not write its record since"
    assert re.fullmatch(message, registry.read("a").message)
    assert ClusterFolder.of(record).written() == (ClusterFolder.of(record).path / RECORD).stat().st_mtime
    for state, message, shown in (
        ("ready", "", r"this was the state at .* since"),
        ("failed", "rank 1 was lost", "rank 1 was lost"),
        ("closing", "", ""),
    ):
        ClusterFolder.of(record).write(record.replace(state=state, message=message))
        (ClusterFolder.of(record).path / RECORD).chmod(0o1600)
        assert re.fullmatch(shown, registry.read("a").message)
    ClusterFolder.of(later).update(later)
    assert registry.read("a") == later
    assert ClusterFolder.of(record).written() is None


# reading what should not be there


def test_an_unknown_name_gets_the_closest_one():
    with raises(ClusterNotFound, option="name", given="a", allowed=()):
        registry.read("a")
    cluster("alpha")
    with raises(ClusterNotFound, option="name", given="alpa", allowed=("alpha",)):
        registry.read("alpa")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        "[]",
        "null",
        "7",
        '"a"',
        b"\xff\xfe\x00",
        b"\x80",
        "{}",
        '{"schema": 1}',
        '{"schema": 1, "name": "a"}',
    ],
)
def test_a_corrupt_record_is_told_with_its_path_and_what_to_do(content):
    record = cluster()
    put(record, content)
    with pytest.raises(RecordError, match=r"record of cluster 'a' cannot be read .*record\.json\. .*Remove its folder"):
        registry.read("a")


@given(st.integers(0, len(WHOLE) - 1))
def test_a_record_that_is_cut_anywhere_is_corrupt(cut):
    with pytest.raises(json.JSONDecodeError):
        parse(WHOLE[:cut].encode(), "a")


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": "many"},
        {"ranks": None},
        {"process": None},
        {"process": {"pid": 1}},
        {"process": dataclasses.asdict(HERE) | {"pid": "1"}},
        {"world": [1]},
        {"next": {"index": 0, "ranks": "2"}},
        {"memory": "2GB"},
        {"deadline": "soon"},
        {"scheduler": "lsf"},
        {"id": ""},
        {"id": "../.."},
        {"unknown": 1},
        {"created": 1e300},
        {"created": float("nan")},
        {"created": -1},
        {"ends": float("inf")},
        {"ends": 1e12},
        {"ranks": -1},
        {"threads": 10**300},
        {"message": "\ud800"},
        {"preload": [[]]},
        {"resources": {"extra": [3]}},
    ],
)
def test_a_record_of_wrong_values_is_corrupt(fields):
    record = cluster()
    put(record, changed(record, **fields))
    with raises(RecordError, given="a"):
        registry.read("a")


@given(st.sampled_from(sorted(json.loads(WHOLE))), ODD)
def test_a_record_with_any_value_in_any_place_can_be_shown_or_is_corrupt(field, value):
    text = json.dumps(json.loads(WHOLE) | {field: value}).encode()
    try:
        record = parse(text, "a")
    except DAMAGED:
        return
    shown = display.html(record, [], "running") + display.text(record, 1, "running")
    assert shown.encode()
    assert ClusterFolder.of(record).logs.parent == logs_folder()


def test_whole_numbers_are_times_too():
    record = cluster()
    put(record, changed(record, deadline=5))
    assert registry.read("a").deadline == 5


def test_a_folder_of_clusters_that_cannot_be_read_is_told(root):
    root.mkdir()
    clusters_folder().write_text("no folder")
    with raises(RecordError, given=str(clusters_folder())):
        registry.names()


@pytest.mark.parametrize("schema", [0, SCHEMA - 1, SCHEMA + 1, str(SCHEMA), None])
def test_a_record_of_another_version_is_told(schema):
    record = cluster()
    put(record, changed(record, schema=schema))
    with pytest.raises(RecordError, match=re.escape(f"schema {schema!r}, and this version reads schema {SCHEMA}")):
        registry.read("a")


def test_a_record_that_names_another_cluster_is_told():
    record = cluster()
    put(record, changed(record, name="b"))
    with raises(RecordError, given="a"):
        registry.read("a")


@pytest.mark.parametrize(("path", "open_mode", "right"), [("", 0o750, "700"), (RECORD, 0o644, "600")])
def test_a_record_that_others_can_read_is_refused_with_the_command_that_closes_it(path, open_mode, right):
    record = cluster()
    (ClusterFolder.of(record).path / path).chmod(open_mode)
    command = f"chmod {right} '{ClusterFolder.of(record).path / path}'"
    with raises(RecordError, given=f"{open_mode:o}", allowed=right) as caught:
        registry.read("a")
    assert command in str(caught.value)
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert registry.read("a") == record


def test_a_record_of_another_user_is_refused(monkeypatch):
    me = _as_another_user(monkeypatch)
    with raises(RecordError, given=me):
        registry.read("a")


def test_a_link_to_the_folder_of_somebody_is_refused(root, tmp_path):
    record = cluster()
    ClusterFolder.of(record).path.rename(tmp_path / "elsewhere")
    ClusterFolder.of(record).path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError):
        registry.read("a")


def test_what_is_no_folder_is_no_record(root):
    cluster("other")
    path = root / "clusters" / "a"
    path.write_text("")
    path.chmod(0o600)
    with raises(RecordError, given="a"):
        registry.read("a")
    path.unlink()
    (path / RECORD).mkdir(parents=True)
    path.chmod(0o700)
    (path / RECORD).chmod(0o700)
    with raises(RecordError, given="a"):
        registry.read("a")


# who is gone


@pytest.mark.parametrize(
    ("process", "alive"),
    [
        (HERE, True),
        (GONE, False),
        (dataclasses.replace(HERE, boot="an earlier one"), False),
        (ELSEWHERE, None),
        (dataclasses.replace(GONE, namespace="pid:[1]"), None),
    ],
    ids=["here", "reused pid", "rebooted", "other host", "other container"],
)
def test_only_a_cluster_that_is_surely_gone_is_cleaned(process, alive):
    record = cluster(process=process)
    assert record.alive() is alive
    assert registry.clean() == (["a"] if alive is False else [])
    assert registry.names() == ([] if alive is False else ["a"])
    assert ClusterFolder.of(record).logs.is_dir()


def test_a_submitted_cluster_is_not_gone_before_its_deadline():
    record = cluster(process=GONE, state="submitted", deadline=time.time() + 60)
    assert record.alive() is None
    assert registry.clean() == []
    ClusterFolder.of(record).write(record.replace(deadline=time.time() - 1))
    assert registry.clean() == ["a"]


def test_a_killed_head_is_gone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        cluster(process=ProcessId.of(process.pid))
        assert registry.running("a").alive() is True
        process.kill()
    with pytest.raises(ClusterNotFound, match=rf"'a' has ended \(its head, process {process.pid} on .* was killed"):
        registry.running("a")
    assert registry.names() == []


@pytest.mark.parametrize("process", [HERE, ELSEWHERE])
def test_a_stale_record_is_replaced_and_any_other_is_not(process):
    stale = cluster(process=GONE)
    successor = cluster(process=process)
    assert successor.id != stale.id
    with pytest.raises(ClusterExists):
        cluster()
    assert registry.read("a").id == successor.id


def test_nothing_is_concluded_from_a_record_that_cannot_be_read():
    record = cluster(process=GONE)
    put(record, "{")
    assert registry.clean() == []
    with pytest.raises(ClusterExists):
        cluster()


def test_strange_folders_do_not_keep_stale_records_from_being_cleaned(root):
    cluster(process=GONE)
    (root / "clusters" / "lost and found").mkdir()
    assert registry.clean() == ["a"]


def test_cleaning_takes_the_key_along_and_leaves_no_trace():
    record = cluster(process=GONE)
    (ClusterFolder.of(record).path / "key.pem").write_text("key")
    registry.clean()
    assert inside(clusters_folder()) == []


def test_a_cluster_that_failed_tells_why():
    record = cluster(process=GONE, state="failed", message="rank 1 died")
    with raises(ClusterNotFound, option="name", given="a") as caught:
        registry.running("a")
    assert str(ClusterFolder.of(record).logs) in str(caught.value)


def test_a_cluster_that_was_removed_still_tells_where_its_logs_are():
    record = cluster()
    ClusterFolder.of(record).remove()
    with raises(ClusterNotFound, option="name", given="a") as caught:
        registry.running("a")
    assert str(ClusterFolder.of(record).logs) in str(caught.value)
    with raises(ClusterNotFound, option="name", given="b"):
        registry.running("b")


def test_a_cluster_that_was_removed_tells_why_as_its_head_has_kept_it():
    record = cluster()
    ClusterFolder.of(record).note(record, ended_because.ENDED, "SIGTERM was received, as when its job is deleted")
    ClusterFolder.of(record).remove()
    with pytest.raises(
        ClusterNotFound, match=r"'a' has ended \(SIGTERM was received, as when its job is deleted\)\. Its"
    ):
        registry.running("a")


# records that appear late


def test_a_record_that_appears_late_is_awaited():
    record = Record(name="a", ranks=2)
    late = threading.Timer(0.2, registry.create, [record])
    late.start()
    try:
        with dask.config.set({"workbench.record-timeout": "60 s"}):
            assert await_record("a") == record
    finally:
        late.join()


def test_a_record_that_never_appears_is_told_with_path_host_and_time():
    with (
        dask.config.set({"workbench.record-timeout": "100 ms"}),
        pytest.raises(ClusterNotFound) as caught,
    ):
        await_record("a")
    assert str(clusters_folder() / "a" / "record.json") in str(caught.value)
    assert socket.gethostname() in str(caught.value)


def test_a_record_that_is_refused_is_not_awaited(monkeypatch):
    record = cluster()
    ClusterFolder.of(record).path.chmod(0o755)
    monkeypatch.setattr(registry, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pytest.fail))
    with pytest.raises(RecordError):
        await_record("a")


def test_a_record_that_another_host_replaces_during_a_read_is_read_again(monkeypatch):
    record = cluster()
    read_bytes, stale = Path.read_bytes, []

    def stale_once(path):
        if path not in stale:
            stale.append(path)
            raise OSError(errno.ESTALE, "Stale file handle")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", stale_once)
    assert registry.read("a") == record
    stale.clear()
    assert ClusterFolder.of(record).owns_lease()
    assert stale == [ClusterFolder.of(record).path / RECORD]


# the lease


def test_the_lease_is_the_folder_with_the_id_of_the_cluster():
    record = cluster()
    assert ClusterFolder.of(record).owns_lease()
    assert ClusterFolder.of(record.replace(state="closing")).owns_lease()
    assert not ClusterFolder.of(record.replace(id="another")).owns_lease()
    shutil.rmtree(ClusterFolder.of(record).path)
    assert not ClusterFolder.of(record).owns_lease()


def test_the_lease_is_lost_to_another_cluster_of_the_name():
    record = cluster()
    shutil.rmtree(ClusterFolder.of(record).path)
    cluster()
    assert not ClusterFolder.of(record).owns_lease()


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "null"])
def test_the_lease_is_not_lost_by_a_record_that_is_damaged(content):
    record = cluster()
    put(record, content)
    assert ClusterFolder.of(record).owns_lease()


def test_the_lease_is_lost_to_another_owner(monkeypatch):
    record = cluster()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert not ClusterFolder.of(record).owns_lease()


@pytest.mark.parametrize("nobody", [65534, 2**32 - 2])
def test_a_file_server_that_does_not_know_its_users_says_nothing_about_the_lease(monkeypatch, nobody):
    record = cluster()
    monkeypatch.setattr(Path, "lstat", lambda _: SimpleNamespace(st_uid=nobody))
    with raises(OSError, errno=errno.EIO):
        ClusterFolder.of(record).owns_lease()
    monkeypatch.setattr(os, "geteuid", lambda: nobody)
    assert ClusterFolder.of(record).owns_lease()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", b"\xff\xff"])
def test_damage_does_not_take_the_lease(content):
    record = cluster()
    put(record, content)
    assert ClusterFolder.of(record).owns_lease()


def test_a_file_server_that_does_not_answer_says_nothing_about_the_lease(monkeypatch):
    record = cluster()

    def stale(path):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "read_bytes", stale)
    with raises(OSError, errno=errno.ESTALE):
        ClusterFolder.of(record).owns_lease()


def test_removing_takes_the_own_folder_and_keeps_the_logs():
    record = cluster()
    ClusterFolder.of(record).remove()
    assert inside(clusters_folder()) == []
    assert ClusterFolder.of(record).logs.is_dir()


def test_removing_never_takes_the_folder_of_a_successor():
    record = cluster()
    shutil.rmtree(ClusterFolder.of(record).path)
    successor = cluster()
    ClusterFolder.of(record).remove()
    assert registry.read("a") == successor


def test_no_file_of_a_stale_cluster_is_open_when_its_folder_is_removed(monkeypatch):
    """On NFS the folder of an open file cannot be removed."""
    stale, rmtree, opened = cluster(process=GONE), shutil.rmtree, []

    def remove(folder, **options):
        opened.extend(path for path in open_files() if path.is_relative_to(folder))
        rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", remove)
    assert registry.clean() == [stale.name]
    assert opened == []
    assert inside(clusters_folder()) == []


def open_files():
    """Return the paths of the open files of this process."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the file of the listing
            yield link.readlink()


# logs of ended clusters


def test_the_newest_logs_of_a_name_are_found():
    older, newer = cluster(), None
    ClusterFolder.of(older).remove()
    newer = cluster()
    os.utime(ClusterFolder.of(older).logs, (1, 1))
    cluster("a-b")
    assert registry.logs_of("a") == ClusterFolder.of(newer).logs
    with pytest.raises(ClusterNotFound):
        registry.logs_of("b")


def ended(number):
    """Return folders of logs of clusters that have ended, the oldest first."""
    records = [cluster(f"old{i}") for i in range(number)]
    for i, record in enumerate(records):
        shutil.rmtree(ClusterFolder.of(record).path)
        os.utime(ClusterFolder.of(record).logs, (i + 1, i + 1))
    return [ClusterFolder.of(record).logs for record in records]


@pytest.mark.parametrize("kept", [0, 1, 3, 9])
def test_the_newest_logs_are_kept_and_those_of_running_clusters_always(kept):
    running, damaged, last = cluster("running"), cluster("damaged"), cluster("last")
    old = ended(5)
    put(damaged, "{")
    for record in (running, damaged, last):
        os.utime(ClusterFolder.of(record).logs, (0, 0))
    os.utime(ClusterFolder.of(last).logs, (100, 100))
    with dask.config.set({"workbench.keep-logs": kept}):
        ClusterFolder.of(last).remove()
    newest = [*old, ClusterFolder.of(last).logs][-kept:] if kept else []
    assert set(logs_folder().iterdir()) == {ClusterFolder.of(running).logs, ClusterFolder.of(damaged).logs, *newest}


@pytest.mark.parametrize("kept", [None, "all", -1])
def test_a_number_of_logs_that_is_not_valid_removes_none_and_ends_the_cluster(kept):
    record, old = cluster(), ended(3)
    with dask.config.set({"workbench.keep-logs": kept}):
        ClusterFolder.of(record).remove()
    assert registry.names() == []
    assert set(logs_folder().iterdir()) == {ClusterFolder.of(record).logs, *old}


def test_the_end_of_a_cluster_does_not_wait_for_the_record_of_another():
    record, other = cluster(), cluster("hanging")
    path = ClusterFolder.of(other).path / RECORD
    path.unlink()
    os.mkfifo(path, 0o600)  # a read waits, as for a file server that does not answer
    removal = threading.Thread(target=ClusterFolder.of(record).remove, daemon=True)
    removal.start()
    try:
        removal.join(DEADLINE)
        assert not removal.is_alive()
    finally:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # a reader gets the end of the file
    assert registry.names() == ["hanging"]
    assert ClusterFolder.of(other).logs.is_dir()


def test_a_cluster_ends_in_order_though_somebody_removed_the_logs():
    record = cluster()
    shutil.rmtree(logs_folder())
    ClusterFolder.of(record).remove()
    assert registry.names() == []


def test_clusters_that_end_together_prune_together():
    records = [cluster(f"c{i}") for i in range(12)]
    ended(10)
    failures = []

    def remove(record):
        try:
            ClusterFolder.of(record).remove()
        except OSError as error:
            failures.append(error)

    with dask.config.set({"workbench.keep-logs": 1}):
        threads = [threading.Thread(target=remove, args=[record]) for record in records]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(list(logs_folder().iterdir())) == 1


def test_threads_that_write_at_once_leave_a_whole_record():
    record = Record(name="a", ranks=1)
    registry.create(record)
    # Of different lengths: pieces of one in another would show.
    messages = ["short", "a longer message " * 50]
    with ThreadPoolExecutor(4) as threads:
        for message in threads.map(_write_often, [record.replace(message=message) for message in messages * 2]):
            assert message in messages
    assert registry.read("a").message in messages
    assert [path.name for path in ClusterFolder.of(record).path.iterdir()] == [RECORD]


def _write_often(record):
    for _ in range(25):
        ClusterFolder.of(record).write(record)
        read = registry.read(record.name).message
    return read


def test_a_job_that_waited_long_takes_no_other_cluster_of_its_name_for_its_own(monkeypatch):
    record = cluster()
    assert await_record("a", record.id) == record
    with (
        dask.config.set({"workbench.record-timeout": "0.2 s"}),
        raises(ClusterNotFound, given="0" * 32),
    ):
        await_record("a", "0" * 32)


@pytest.mark.parametrize(("state", "continues"), [("submitted", True), ("ready", False)])
def test_a_job_that_is_put_back_into_its_queue_does_not_take_the_cluster_from_a_later_job(state, continues):
    record = Record(name="mpi", ranks=2, resubmit=1, turn=1, state=state)
    assert (record.in_job(0) is not None) is continues
